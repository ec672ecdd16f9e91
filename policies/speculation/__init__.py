"""Speculation (DSD): how many tokens are drafted in a round, and where."""
