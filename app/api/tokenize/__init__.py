"""Tokens of texts and texts of tokens over HTTP."""
