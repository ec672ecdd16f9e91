"""Configurations of simulations, and their errors."""
