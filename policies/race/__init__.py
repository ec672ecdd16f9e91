"""DiSCo's decisions: which side starts when, when generation is handed over, and what that may cost."""
