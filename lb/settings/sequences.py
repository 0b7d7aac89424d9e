"""Settings of sequences, the requests of stateful models that belong together."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lb.settings.section import Section
from lb.settings.values import Number, PositiveCount


class AffinityName(StrEnum):
    """How the backend of a new sequence is chosen."""

    LEAST_LOADED = "least_loaded"
    RENDEZVOUS = "rendezvous"


class SequenceSettings(Section):
    """Sequences: requests with a `sequence_id` go where their START went."""

    affinity: AffinityName = AffinityName.LEAST_LOADED
    """Where a new one runs. `least_loaded`: the backend with the fewest open sequences of its model
    and requests in flight, times how long a step was learnt to take there; a faster backend gets
    more of them. While nothing is learnt the weights of backends count. `rendezvous`: chosen by a
    hash of model and id over the backends that may get it, so that several load balancers agree
    while they see the same backends under the same names. What another one started is asked for at
    up to three, as `retry.attempts` allows."""
    bound: Annotated[Number, Field(ge=1, le=100)] = 1.25
    """With `rendezvous`: how many times its share of the sequences of a model a backend may have
    before the next one by the hash is taken; 100 is hardly a bound."""
    max_open: Annotated[PositiveCount, Field(le=10_000_000)] = 1_000_000
    """Sequences that are remembered; each takes about 180 bytes, more with a long id. Beyond that
    the one idle for longest is forgotten, and its next request may reach the wrong backend."""
