"""`triton-lb demo`: simulated Tritons, the load balancer over them, requests, and a live table.

`children` owns the processes, `balancer` knows how the load balancer is started and asked, `load`
sends requests and checks the answers, `table` draws, `run` puts them together.
"""

from __future__ import annotations

from lb.cli.demo.run import run_demo

__all__ = ["run_demo"]
