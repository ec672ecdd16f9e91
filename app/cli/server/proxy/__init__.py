"""HAProxy in front of the API, and what stands in for one that dies."""
