"""Answers kept for a while, for all replicas of the API: responses, and copies of resumable streams."""
