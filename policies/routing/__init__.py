"""Routing: which mode, device and replica serve a request."""
