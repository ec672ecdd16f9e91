"""Serve deployments, requests, modes, and what the router learns."""
