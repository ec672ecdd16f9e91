"""Every decision Tandem takes, pure: numbers in, decision out. No Ray, no torch, no clock, no I/O."""
