"""Admission: rate limits and fair queueing before a request starts."""
