"""From a request and what is up to an assignment of endpoints."""
