"""The wire: length-prefixed frames over one multiplexed connection per pair of processes."""
