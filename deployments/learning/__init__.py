"""What finished requests teach: acceptance of draft pairs, latencies, output lengths."""
