"""Links between machines: round-trip time, jitter and bandwidth, measured or emulated."""
