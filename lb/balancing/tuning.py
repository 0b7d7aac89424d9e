"""Every number that decides how the scheduler and the policies behave, in one place.

A value comes from the scenes of `make ablate`, unless its text names another source. Each has a row
in docs/decisions/0051-constants-of-the-scheduler.md: the scene that shows it, and what half and
double of it change. Numbers that only bound memory or work stay where they are used.

Times are in seconds. A *share* is a part of one, a *ratio* a factor, a *count* a number of requests
or executions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The behavioural constants of `lb.balancing`. Other modules read them once, when imported."""

    # How many requests are sent ahead of the executions that run

    lead_s: float = 0.05
    """Seconds before its execution at which a request is sent ahead at the earliest: later it is
    bound to the right backend more often."""
    margin_s: float = 0.025
    """Seconds of execution that are kept at a backend beyond what executes: several times what
    passes between an answer and the next request on busy event loops (docs/decisions/0029)."""
    network_rounds: float = 2.0
    """Ratio of the network delay by which requests are sent ahead: one for the answer, one for the
    next request."""
    ahead_rounding: float = 0.2
    """Share of a request that is not rounded up to a whole one sent ahead."""
    random_deviation: float = 0.6
    """Share of the mean that the mean deviation of executions has to exceed for a quick one to say
    nothing of the network delay; that of an exponential distribution is 0.74."""
    adjust_every: int = 8
    """Count of samples after which a known limit is computed anew; a power of two."""
    late_lead_s: float = 0.004
    """Lead in seconds of requests that later ones may overtake: the next arrival may be better
    placed."""
    yielding_lead_s: float = 0.002
    """Lead in seconds of requests that should not be in the way of the highest priority."""

    # Which backend is best for a request

    own_execution_weight: float = 0.75
    """Share of its own execution that a request is charged with when model backends are compared:
    with all of it slow model backends would be used too late."""
    busy_execution_weight: float = 0.2
    """Share as above, where the request would end no later than many others do anyway: there a slow
    model backend makes nobody late."""
    tie_tolerance: float = 0.05
    """Share of the time until then by which scores may differ and still take turns."""
    idle_tie_tolerance: float = 0.25
    """Share of an execution by which idle model backends may differ and still take turns: learnt
    costs differ by as much for no reason."""
    unsure_deviations: float = 2.5
    """Mean deviations of the weighted mean within which two estimates count as equal: two standard
    errors, where a standard deviation is 1.25 mean ones (normal distribution)."""
    affinity_slack: float = 1.5
    """Ratio by which another backend has to finish sooner before a message leaves its stream's
    home."""

    # Which queued request is next

    overtaken_share: float = 0.65
    """Share of `ModelStats.tail_s`, less one execution, for which a request may be overtaken by
    later ones."""
    slow_ratio: float = 1.25
    """Ratio to the fastest from which on a model backend counts as slow."""
    same_work_ratio: float = 1.2
    """Ratio of work up to which a queued request may go to a slow model backend in place of the
    next one."""
    default_due_s: float = 5.0
    """Seconds after which a request without a deadline counts as due: its client has a deadline
    too, and did not name it."""
    overtaken_executions: float = 10.0
    """Executions of its own by which a request counts as due later, so that shorter ones pass it.
    """
    tail_weight: float = 0.005
    """Weight of one arrival in the tail: rare crowds make it, so several have to be remembered."""
    tail_deviations: float = 3.0
    """Mean deviations above the mean at which the tail begins; near the 99th percentile of an
    exponential distribution."""
    tail_samples: int = 16
    """Count of arrivals from which on the tail is known."""
    tail_for_s: float = 1.0
    """Seconds without an arrival after which the tail is forgotten."""
    tail_ratio: float = 1.3
    """Ratio to the tail within which a request ends no later than others."""
    arrivals_one_in: int = 4
    """One of this many arrivals is learnt from; a power of two. It is chosen by Fibonacci hashing
    of its number, so a client that alternates models skips none."""
    rate_for_s: float = 0.05
    """Seconds for which the sum of the rates of all model backends is kept."""
    recheck_s: float = 0.001
    """Seconds after which a queue is checked again once its best model backend should be free."""
    recheck_share: float = 0.25
    """Share of an execution that is added to `recheck_s`."""
    capped_poll_s: float = 0.01
    """Seconds between checks of a backend with a limit for all models, which others may free
    without an event."""

    # What is learnt of executions

    window: int = 20
    """Count of samples in a cost: a change of speed is known after about as many. No request is
    refused by an estimate of fewer."""
    min_samples: int = 2
    """Count of samples from which on an estimate is used."""
    unknown_s: float = 0.01
    """Seconds that an execution is assumed to take while no model backend is known."""
    first_samples: int = 4
    """Count of first samples of which the median counts: the first executions load and compile."""
    first_deviation: float = 0.25
    """Share of the mean by which a first sample, or one that a backend reports, may be off."""
    stale_s: float = 10.0
    """Seconds after which an estimate refuses nothing, and counts as `stale_samples`."""
    stale_samples: int = 2
    """Count of samples that an old estimate stands for."""
    surprises: int = 3
    """Count of outliers in a row that are a change."""
    clip_deviations: float = 4.0
    """Mean deviations in the usual spread; a sample beyond the spread is clipped to it.
    `clip_share` and `clip_s` come on top."""
    clip_share: float = 0.25
    """Share of the estimate in the usual spread."""
    clip_s: float = 0.0002
    """Seconds in the usual spread: what event loops are late by."""
    max_extrapolation: float = 16.0
    """Ratio to a typical execution that no estimate exceeds: such sizes were never seen."""
    min_variation: float = 0.01
    """Squared coefficient of variation from which on rows or bytes explain times."""
    request_weight: float = 0.05
    """Weight of one request in averages of lateness and network delay."""
    latenesses: float = 3.0
    """Average latenesses that a request needs before its deadline: of exponential delays 95 % are
    less."""
    network_s: float = 0.002
    """Seconds before its deadline that a request needs besides: the network to its client, and the
    mistakes of estimates."""
    batch_end_s: float = 0.002
    """Seconds within which the answers of one batch arrive."""
    batch_rows_weight: float = 0.1
    """Weight of one request in the average number of rows."""

    # What is not learnt from, since it costs CPU and tells nothing

    confident_samples: int = 64
    """Count of executions after which not each one is learnt from."""
    quick_s: float = 0.002
    """Seconds below which executions end so often that few are learnt from."""
    settled_deviation: float = 0.06
    """Mean deviation, as a share of the cost, below which few executions are learnt from."""
    learn_one_in: int = 16
    """One of this many such executions is learnt from; a power of two."""
    learn_after_s: float = 0.25
    """Seconds since the last sample after which an execution is always learnt from."""
    expected_deviation: float = 0.25
    """Share of the cost by which an execution has to be off to be always learnt from."""
    typical_one_in: int = 4
    """One of this many executions counts for the typical cost of the model; a power of two."""

    # Slow, silent and failing backends

    explore_s: float = 1.0
    """Age in seconds from which on the estimate of a slow model backend is doubted."""
    max_explore_s: float = 60.0
    """The longest such age in seconds. Each confirmation doubles it."""
    confirm_ratio: float = 1.5
    """Ratio within which an execution confirms a doubted estimate."""
    overdue_s: float = 1.0
    """Seconds before which no request is overdue: a server that pauses is silent for less."""
    overdue_again_s: float = 0.25
    """Seconds before which none is overdue where one was lost not long ago: there may be more."""
    overdue_again_for_s: float = 60.0
    """Seconds from a loss until which another one is expected, so that `overdue_again_s` counts."""
    overdue_ratio: float = 5.0
    """Ratio to its estimate from which on a request is overdue: of exponential times less than 1 %
    are longer."""
    max_overdue_backoff: int = 4
    """Ratio by which further requests to a silent backend wait longer, at most."""
    penalty_per_failure: float = 1.25
    """Ratio by which a failure makes a backend count as slower."""
    max_penalty: float = 8.0
    """The largest such ratio: larger ones made backends that all fail at times wait for each other.
    """
    penalty_half_life_s: float = 2.0
    """Seconds in which a penalty fades by half."""
    negligible_penalty: float = 1.1
    """Ratio below which a penalty is none."""
    penalty_after_success: float = 0.5
    """Share of a penalty that a good answer leaves."""

    # Very many backends

    index_above: int = 12
    """Count of model backends above which an index is used: there it costs less than comparisons.
    """
    index_classes: float = 10.0
    """Classes of costs per factor e: idle model backends of one class take turns."""
    index_renew_s: float = 1.0
    """Seconds after which the index is made anew, since doubts and penalties change without events.
    """

    # The adaptive limit

    adaptive_ends: int = 100
    """Count of ended requests in one measurement."""
    adaptive_pressure: float = 0.8
    """Share of these ends at which the limit must have been reached."""
    adaptive_step: float = 1.5
    """Ratio by which a trial changes the limit."""
    adaptive_gain: float = 0.2
    """Share of a step in concurrency that has to come back as throughput."""
    adaptive_hold: int = 10
    """Count of measurements between trials once a limit is found."""

    # Several workers (figures: docs/decisions/0070-what-workers-share.md)

    give_way_s: float = 0.002
    """Seconds for which room is left to a more urgent request of another worker: an iteration of a
    busy event loop."""
    give_way_again_s: float = 0.04
    """Seconds after which room is left again to a worker that did not use it."""
    fresh_s: float = 0.0002
    """Seconds for which what other workers have in flight is not read again."""
    tell_arrival_s: float = 0.001
    """Seconds after which others are told of another arrival, so that they learn the tail."""

    # Load that others cause

    external_late_intervals: float = 1.5
    """Intervals between reports after which no report means that nothing is known."""
    external_negligible: float = 0.1
    """Share of the time below which the load of others counts as none."""

    # Sequences (figures: docs/decisions/0052-placing-sequences.md)

    step_drift_per_s: float = 1.0 / 60.0
    """Share per second by which the time of a quick step may have grown."""
    step_forget_s: float = 30.0
    """Seconds without a step, while others have some, after which a backend is tried as unknown."""
    step_samples: int = 4
    """Count of steps before a latency counts."""
    sequence_in_flight_weight: float = 0.25
    """Open sequences that a request in flight counts as."""
    sequence_alike_ratio: float = 1.5
    """Ratio of step times within which backends count as equal."""

    # Policies that place at once (figures: docs/decisions/0004-pick-at-scale.md)

    pick_window: int = 16
    """Count of backends that a pick from a large set compares."""
    pick_all_up_to: int = 24
    """Count of backends up to which all are compared."""
    pick_stay: int = 128
    """Count of picks of idle backends from one place before the next one has its turn."""
    latency_weight: float = 0.1
    """Weight of a lower latency in the average of `least_latency`; a higher one counts at once."""
    latency_half_life: float = 500.0
    """Count of picks after which half of a latency is forgotten of which nothing new is known."""
    latency_failure_penalty: float = 10.0
    """Ratio by which a backend all of whose attempts fail counts as slower."""
    latency_few_failures: float = 0.005
    """Share of failures below which they do not count."""


TUNING: Final = Tuning()
