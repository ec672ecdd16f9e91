"""Operators' routes: keys and accounts."""
