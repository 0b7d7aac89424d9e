"""What becomes of requests once their heads are read: the parts that decide, made as one.

`placement.Placer` says which backend an attempt goes to, `accounts.Accounts` count what is under
way and how it ended, `retry.RetryPolicy` decides whether there is another attempt. Both protocols
go by the same three. Whether a request is let in at all is the gate's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from lb.access.gate import Credentials, Gate
from lb.balancing.scheduler import Scheduler
from lb.domain.backend import Backend
from lb.domain.client import Client
from lb.domain.fault import Fault
from lb.domain.pool import OutcomeSink, PassiveHealthSink, PoolRef
from lb.domain.retry import RetryRules
from lb.proxy.accounts import Accounts
from lb.proxy.blame import Blame
from lb.proxy.exchange import Exchange
from lb.proxy.placement import Placer
from lb.proxy.queue import Queue, QueueOptions, queue_options
from lb.proxy.reruns import RerunLimits
from lb.proxy.retry import Misplaced, RetryPolicy, retry_rules
from lb.proxy.split import SplitRule, Splits, split_rules
from lb.proxy.steps import SequenceRules, Steps, sequence_rules
from lb.proxy.tracing import Tracer, TraceRules, trace_rules
from lb.proxy.variants import VariantBook, VariantOptions, variant_options
from lb.settings.model import Settings
from lb.telemetry.record import RequestSink
from lb.telemetry.spans import SpanQueue
from lb.wire.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """What a reload may change."""

    retry: RetryRules = field(default_factory=RetryRules)
    queue: QueueOptions = field(default_factory=QueueOptions)
    sequences: SequenceRules = field(default_factory=SequenceRules)
    traces: TraceRules | None = None
    """None: nothing is traced."""
    variants: VariantOptions = field(default_factory=lambda: VariantOptions(names={}))
    splits: Mapping[bytes, SplitRule] = field(default_factory=dict)


def dispatch_options(settings: Settings) -> DispatchOptions:
    """Read from settings how requests are repeated, wait, and are bound to backends."""
    return DispatchOptions(
        retry=retry_rules(settings),
        queue=queue_options(settings),
        sequences=sequence_rules(settings),
        traces=trace_rules(settings.tracing),
        variants=variant_options(settings),
        splits=split_rules(settings),
    )


def _nobody_cares(_backend: Backend, _model: bytes, _version: bytes | None) -> None:
    """There is no table of models."""


class NoPassiveHealth:
    """Nobody judges backends by how requests fare."""

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        """Nobody cares."""

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        """Nobody cares."""

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        """Nobody cares."""


class Dispatcher:
    """Lets requests in, and has the parts that place, count and repeat them."""

    def __init__(
        self,
        pool: PoolRef,
        outcomes: OutcomeSink,
        requests: RequestSink,
        *,
        clock: Callable[[], float],
        memory_budget: MemoryBudget,
        options: DispatchOptions | None = None,
        gate: Gate | None = None,
        identity: bytes = b"",
        tracer: Tracer | None = None,
        passive_health: PassiveHealthSink | None = None,
        misplaced: Misplaced = _nobody_cares,
        queue: Queue | None = None,
        scheduler: Scheduler | None = None,
        reruns: RerunLimits | None = None,
    ) -> None:
        """
        Args:
            pool: the published pool.
            outcomes: is told of attempts that ended without an answer.
            requests: is told of finished requests.
            clock: monotonic seconds.
            memory_budget: of all bytes held.
            options: those in force until `configure`.
            gate: who may do what; otherwise everybody may do everything.
            identity: ours in hop markers; empty: requests get none.
            tracer: traces requests, once it has rules; otherwise none is traced.
            passive_health: is told how requests fare.
            misplaced: is told of a backend, a model and a version that it says it does not have
                ready.
            queue: in place of one that waits on the running event loop.
            scheduler: of that queue; otherwise one that knows of no other workers.
            reruns: in place of those that wait on the running event loop.
        """
        options = options or DispatchOptions()
        self.pool = pool
        """The published pool."""
        self.clock = clock
        self.gate = gate or Gate()
        self.identity = identity
        """Ours in hop markers; empty: requests get none."""
        self.tracer = tracer or Tracer(Random(), SpanQueue(), clock)
        """Traces requests, once it has rules."""
        self.exiting = False
        """The process shuts down: questions about readiness are answered "Server exiting"."""
        self.steps = steps = Steps(options.sequences)
        """The sequences of both protocols."""
        table = steps.table
        self.variants = variants = VariantBook(
            pool, clock, lambda key: table.backend_of(key) is not None
        )
        """Names that several models serve."""
        variants.configure(options.variants)
        if queue is None:
            queue = Queue(scheduler or Scheduler(), pool, clock, memory_budget, options.queue)
        self.queue = queue
        """Requests that wait for their turn, or for a backend."""
        if reruns is None:
            reruns = RerunLimits(pool, clock, options.retry)
        self.reruns = reruns
        """Requests that may have run and go again."""
        self.splits = Splits(pool, queue, clock, memory_budget)
        """Batches that are cut."""
        self.splits.configure(options.splits)
        self.blame = blame = Blame(passive_health or NoPassiveHealth(), clock)
        """How requests fare, and whose fault resets are."""
        self.placer = Placer(pool, clock, memory_budget, queue, steps, reruns)
        """Which backend an attempt goes to."""
        self.accounts = Accounts(
            outcomes, requests, clock, queue=queue, steps=steps, reruns=reruns, blame=blame
        )
        """What is open and in flight, and how it ended."""
        self.retry = RetryPolicy(
            pool,
            clock,
            options.retry,
            queue=queue,
            steps=steps,
            reruns=reruns,
            blame=blame,
            accounts=self.accounts,
            misplaced=misplaced,
        )
        """Whether there is another attempt."""

    def configure(self, options: DispatchOptions, gate: Gate, requests: RequestSink) -> None:
        """Go by other options from now on. Relays that read heads by the gate are to be told.

        Args:
            options: of all parts.
            gate: who may do what.
            requests: is told of finished requests.
        """
        self.gate = gate
        self.steps.configure(options.sequences)
        self.variants.configure(options.variants)
        self.queue.configure(options.queue)
        self.retry.configure(options.retry)
        self.splits.configure(options.splits)
        self.tracer.configure(options.traces)
        tracer = self.tracer if options.traces is not None else None
        self.placer.tracer = tracer
        self.accounts.configure(requests, tracer)

    @property
    def open_exchanges(self) -> int:
        """Gauge: exchanges begun and not finished."""
        return self.accounts.open_exchanges

    def announce_exit(self) -> None:
        """Answer from now on that we are not ready; requests are still taken."""
        self.exiting = True
        self.pool.announce()

    def admit(self, exchange: Exchange, credentials: Credentials, client: Client) -> None:
        """Let a request pass the gate, whose claim its head has. What it then holds of limits
        is given back when it ends.

        Raises:
            RequestRefused: it may not.
        """
        gate = self.gate
        token = gate.identify(credentials)
        if token is not None:
            exchange.token = token.name
        if client.is_trusted_proxy:
            address = gate.address(credentials, client)
            if address != client.address:
                exchange.client = str(address)
        exchange.permit = gate.admit(credentials, token, client, self.clock())
