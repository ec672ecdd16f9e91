"""Simulations that operators run from the page."""
