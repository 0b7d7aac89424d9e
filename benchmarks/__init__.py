"""Benchmarks: micro benches of the hot paths here, the side-by-side load benches in `load`."""
