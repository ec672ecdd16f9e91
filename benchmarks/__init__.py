"""Benchmarks behind claims of performance: `tandem benchmark` lists them, `tandem benchmark NAME` runs one."""
