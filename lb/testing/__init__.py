"""Test clients against several Tritons without a GPU: simulated Tritons, and triton-lb before them.

    from lb.testing import running, simulated

    with simulated(3) as tritons, running(tritons) as lb:
        client = tritonclient.http.InferenceServerClient(lb.http)

Each Triton and the load balancer is a process of its own on 127.0.0.1, so a test may kill one. All
of them end with the block, or with the process that started them (Linux). `lb.testing.plugin` has
the same as fixtures of pytest. docs/testing.md is the guide.
"""

from lb.testing.balancer import Balancer, running
from lb.testing.processes import StartError
from lb.testing.tritons import Triton, simulated

__all__ = ["Balancer", "StartError", "Triton", "running", "simulated"]
