"""Answers in the terminal: the client, the conversation and its colours."""
