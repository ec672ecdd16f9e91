"""Engines of another vocabulary."""
