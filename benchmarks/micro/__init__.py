"""Micro benches: what each function of the fence costs (ARCHITECTURE.md, "Hot paths").

`python -m benchmarks.micro` prints nanoseconds, `python -m benchmarks.micro.work` counts work.
"""
