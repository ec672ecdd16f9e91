"""Mode speculative: a small model drafts, the target verifies."""
