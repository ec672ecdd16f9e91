"""Admission: rate limits, and a fair order of requests that wait."""
