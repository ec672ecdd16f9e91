"""Training of AWC's network: scenarios, sweeps of the simulator, fitting."""
