"""Engines in virtual time: timed steps with scripted tokens."""
