"""Tandem in a Python program: a server of its own, and simulations."""
