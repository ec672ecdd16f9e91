"""Tuning of the cloud's model to shorter sketches (PICE): supervised, a reward from preferences, reinforcement."""
