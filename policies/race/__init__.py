"""Race (DiSCo): which endpoint starts when, when generation migrates, and what that may cost."""
