"""Structured output: what a request says of its answer's form."""
