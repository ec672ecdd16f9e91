"""What claims of performance rest on: `python -m benchmarks` lists them, `python -m benchmarks NAME` runs one."""
