"""What makes weights: the embedded family, AWC's network."""
