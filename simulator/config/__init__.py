"""Configurations of simulations, and what is said about wrong ones."""
