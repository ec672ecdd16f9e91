"""Benchmarks behind claims of performance: `python -m benchmarks` lists them, `python -m benchmarks NAME` runs one."""
