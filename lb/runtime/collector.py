"""How often the cyclic garbage collector looks at objects, and at which."""

from __future__ import annotations

import gc
from typing import Final

_COLLECT_AFTER: Final = (10_000, 2, 100)
"""New objects that start a collection, collections until the middle generation is looked at as
well, and those until all is: pauses of 1 ms and 4 ms, and for all one that may never come
(docs/decisions/0022-garbage-collection.md)."""


def collect_seldom() -> None:
    """Have the collector wait for more objects than by default.

    A command does this first: modules that are loaded make many objects and no garbage, and looking
    at them again and again was a tenth of the time until a process serves.
    """
    gc.set_threshold(*_COLLECT_AFTER)


def quiet_the_collector() -> None:
    """Keep the cyclic collector from walking the whole program between requests.

    Neither requests nor connections leave cycles behind, so there is little to collect; with the
    defaults each few hundred requests in flight start a walk over what was ever imported: 20 ms.
    """
    gc.collect()
    gc.freeze()
    collect_seldom()
