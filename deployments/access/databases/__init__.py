"""Databases that a ledger may be in."""
