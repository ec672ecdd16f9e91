"""API keys, accounts and their limits, usage, and the store that keeps them."""
