"""Public data of the benchmarks: where it comes from, and how it is fetched."""
