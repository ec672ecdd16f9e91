"""Traces of requests to the API."""
