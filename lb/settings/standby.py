"""Settings of standby: the latency budget, and how standby backends are activated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, StringConstraints

from lb.settings.problems import Finding
from lb.settings.section import Section, one_needed
from lb.settings.units import Duration, PositiveDuration

Argument = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]*$")]
"""A part of a command. No shell reads it."""
ModelName = Annotated[str, StringConstraints(min_length=1)]


class ActivateSettings(Section):
    """How a standby backend is activated, if its server does not run with its models loaded."""

    model_config = one_needed("exec", "load")

    exec_: tuple[Argument, ...] = ()
    """Command that starts the server, and its arguments; no shell reads it. It must end by itself:
    leave the server to systemd or a container runtime. It gets `PATH`, `HOME`, `LANG`, `TZ` and the
    name of the backend as `TRITON_LB_BACKEND`, and may run several times.

    Set this when the server does not run while it stands by; otherwise it must run."""
    load: tuple[ModelName, ...] = ()
    """Models that are loaded for the activation, and unloaded afterwards. The Triton needs
    `--model-control-mode=explicit`.

    Set this when the server runs, but other work needs its GPU memory meanwhile; otherwise its
    models stay loaded."""
    timeout: PositiveDuration = 300.0
    """How long an activation may take, until the backend is ready. Then the command is killed with
    its process group, and the activation has failed.

    Set this when your servers start in seconds, or take longer than five minutes; otherwise a
    command that hangs is killed after five minutes."""

    def broken_rules(self) -> Iterator[Finding]:
        """One way to activate."""
        if bool(self.exec_) == bool(self.load):
            yield (), "needs either exec or load"


class DeactivateSettings(Section):
    """How the server of a standby backend is stopped once it is empty."""

    exec_: Annotated[tuple[Argument, ...], Field(min_length=1)]
    """Command that stops the server, and its arguments, as in `activate.exec`. It also runs after a
    failed activation.

    Set this when `activate.exec` starts the server; otherwise nothing stops it."""
    timeout: PositiveDuration = 60.0
    """How long the command may take; then it is killed with its process group.

    Set this when a server takes longer than a minute to stop; otherwise the command is killed."""


class StandbySettings(Section):
    """The latency budget, which `triton_lb_desired_backends` follows, and when standby backends
    serve: those with a rank in `backends[].standby` (docs/operations.md)."""

    latency: Duration = 0.0
    """Wanted mean time of an inference, from its arrival here to the end of its response. 0s is
    twice the time that one takes on idle backends.

    Set this when an autoscaler or standby backends should keep a latency goal; otherwise the goal
    is twice the idle latency."""
    for_: PositiveDuration = 2.0
    """How long the predicted latency must be above the budget before a standby backend is
    activated for that.

    Set this when longer bursts should be ridden out on the backends that serve; otherwise two
    seconds tell a burst from a slow request or two."""
    cooldown: PositiveDuration = 600.0
    """How long a standby backend must have been unnecessary before it is released. It is at least
    five times its measured cold start. One backend is released in this time.

    Set this when the GPU is wanted back sooner, or the load swings within ten minutes; otherwise a
    backend stays active for ten minutes after the last need."""
    hold: PositiveDuration = 300.0
    """How long a request waits for a backend that is being activated, when no other is eligible.
    This replaces `scheduling.wait_for_backend` then. Afterwards the answer is 503 with a
    `Retry-After` from measured activations.

    Set this when clients give up earlier, or your servers take longer to start; otherwise requests
    wait five minutes."""
