"""Readers of streams: paced delivery, and how well tokens' times serve a reader."""
