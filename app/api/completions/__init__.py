"""Chat and text completions: requests, their jobs, and the answers."""
