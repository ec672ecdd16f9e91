"""Engines in virtual time: what a step takes, and which tokens come."""
