"""`triton-lb demo`: simulated Tritons, the load balancer over them, requests, and a live table.

`children` owns the processes, `balancer` knows how the load balancer is started and asked, `load`
sends requests and checks the answers, `tritons` and `acts` are what happens to the simulated
Tritons, `table` draws, `run` puts them together.
"""

from __future__ import annotations

import os

# Read when grpc is imported. A Triton is started again while channels are open; the child runs
# another program at once, so that grpc need not prepare for a fork, nor warn that it cannot.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from lb.cli.demo.run import run_demo

__all__ = ["run_demo"]
