"""Who may begin, and in which order: rate limits and fair turns."""
