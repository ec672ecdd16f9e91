"""Completions: from a request's JSON to a job, and from its tokens to the answer's JSON."""
