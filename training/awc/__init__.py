"""How AWC's network is trained: scenarios, sweeps of the simulator, fitting."""
