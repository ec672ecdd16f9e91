"""Ragged batches and attention over them."""
