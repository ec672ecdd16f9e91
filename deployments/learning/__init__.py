"""Learning from finished requests: acceptance of draft pairs, latencies, output lengths."""
