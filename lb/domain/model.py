"""What is known of ML models: their state on a backend, and what their configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about one ML model; None stands for what is not known yet."""

    is_stateful: bool | None = None
    """Its requests belong to sequences (`sequence_batching`, also that of an ensemble's step), so
    that those of one sequence must reach the same backend."""
    is_decoupled: bool | None = None
    """A request may have any number of answers (`model_transaction_policy.decoupled`)."""
    idle_s: float = 1.0
    """Seconds after which Triton forgets a sequence that gets no request
    (`max_sequence_idle_microseconds`)."""
    has_number_ids: bool = False
    """Its sequences are known by numbers: the model gets the id as one (`CONTROL_SEQUENCE_CORRID`
    of an integer type)."""
    slots: int = 0
    """Sequences that one backend runs at once; 0 where it is not known."""
    instances: int = 0
    """Executions that run side by side on one backend, each of which ends before its instance
    begins another; 0 where that is not so, or not known."""
    is_mixed: bool = False
    """Requests are worked on side by side, and nobody tells how many are enough: an ensemble, or an
    engine that batches by itself."""
    max_batch: int = 0
    """Rows that a dynamic batcher puts into one execution; 0 where there is none."""
    max_rows: int = 0
    """Rows that one request may have (`max_batch_size`), where its configuration does not say that
    they depend on each other; 0 where it does, and where it is not known."""
    preferred: tuple[int, ...] = ()
    """Rows that the dynamic batcher would rather execute than others (`preferred_batch_size`)."""


NO_FACTS: Final = ModelFacts()
"""Of a model whose configuration has not been read."""


class ModelUse(NamedTuple):
    """What of a model runs on one backend."""

    in_flight: int
    """Attempts under way. One that has no connection yet may be of any model, and counts. A stream
    counts while answers of the model may come."""
    open_sequences: int
    idle_streams: int = 0
    """Streams that have asked for the model, and wait for no answer of it. A Triton unloads it only
    when they have ended there."""


class ModelState(Enum):
    """What a backend says of one version of one of its models."""

    READY = "ready"
    LOADING = "loading"
    UNLOADING = "unloading"
    UNAVAILABLE = "unavailable"
    """It is in the repository and not loaded, or cannot be."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of a backend's list of models."""

    name: bytes
    """As it stands on the wire."""
    version: bytes
    """Empty where none was ever loaded."""
    state: ModelState
    reason: str = ""
    """Why it is not ready, in the backend's words."""
