"""Commands for API keys and devices' keys."""
