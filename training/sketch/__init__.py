"""How the cloud's model is tuned to shorter sketches (PICE): supervised, a reward from preferences, reinforcement."""
