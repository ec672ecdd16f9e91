"""Routing: assigns endpoints to requests, among those that are up."""
