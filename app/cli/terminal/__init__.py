"""Answers, tables and progress on the terminal."""
