"""Faults, side by side: what a load loses when Tritons die, hang, lie or are replaced.

`python -m benchmarks.faults` runs every scenario of `scenarios.py` before real Tritons, through
triton-lb with its defaults and through Envoy with and without tuning, and joins the ledgers of
clients and backends. `benchmarks/README.md` says how to read what it prints.
"""
