"""Which KServe call a request is, and what we do with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lb.domain.backend import BackendKind


class OperationKind(Enum):
    """What running an operation twice, or elsewhere, would mean."""

    READ = "read"
    """Health, metadata, configuration, statistics: safe any number of times."""
    INFERENCE = "inference"
    """One request, one answer (or one stream of answers) of a model."""
    STREAM = "stream"
    """A bidirectional stream of inferences."""
    CONTROL = "control"
    """Changes a server: load, unload, shared memory, trace and log settings."""
    OTHER = "other"
    """Not a call that we know; nothing may be assumed."""


class Treatment(Enum):
    """What the proxy does with an operation."""

    BALANCE = "balance"
    """Send it to the least-loaded backend; a step of a sequence to the backend of that."""
    BROADCAST = "broadcast"
    """Send it to all backends that it concerns, and answer once."""
    MERGE = "merge"
    """Ask all backends, and make one answer of theirs."""
    ANSWER = "answer"
    """Answer it ourselves."""


class ModelIn(Enum):
    """Where the model's name stands."""

    NOWHERE = "nowhere"
    PATH = "path"
    MESSAGE = "message"
    """In field 1 of the first gRPC message."""
    SPEC = "spec"
    """In field 1 of the message that is field 1 of it: TF Serving's `ModelSpec`."""
    TASK = "task"
    """One message deeper: in the first of TF Serving's `InferenceTask`s."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call that we know: KServe v2 with Triton's extensions, TF Serving."""

    name: str
    """The gRPC method name, used for both protocols in logs and metrics: `ModelInfer`."""
    kind: OperationKind
    treatment: Treatment = Treatment.BALANCE
    model_in: ModelIn = ModelIn.NOWHERE
    asks: BackendKind = BackendKind.TRITON
    """Which backends a broadcast or merge concerns. Where there are none of them, it is balanced
    over the others."""

    @property
    def may_run_twice(self) -> bool:
        """Whether a request that may have run can be sent again without harm."""
        return self.kind in (OperationKind.READ, OperationKind.INFERENCE)
