"""Clients of the key service: bills on their way to it, and callers that it has told of."""
