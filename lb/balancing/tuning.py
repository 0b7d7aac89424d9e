"""Every number that decides how the scheduler and the policies behave, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The behavioural constants of `lb.balancing`."""

    # model_backend
    lead_s: float = 0.05
    """A request is sent ahead when the execution before it ends within this many seconds: early enough to lose no time, and late enough to be bound to the right backend."""
    own_execution_weight: float = 0.75
    """The part of its own execution that a request is charged with when model backends are compared.  With all of it each request would end first, and those behind it would wait for the fast backend: a slow one would be used too late."""
    margin_s: float = 0.025
    """Seconds of execution that are sent ahead of what executes. It is several times what passes between the end of an execution and the arrival of the next request on busy event loops."""
    explore_s: float = 1.0
    """An estimate of a slow model backend is doubted once it is this old, in seconds."""
    max_explore_s: float = 60.0
    """Each confirmation doubles that age, up to this many seconds."""
    confirm_ratio: float = 1.5
    """An execution confirms a doubted estimate if the two differ by less than this factor."""
    request_weight: float = 0.05
    """The weight of one request in averages over requests: about twenty of them are remembered."""
    network_rounds: float = 2.0
    """Requests are sent ahead by this many times the network delay."""
    latenesses: float = 3.0
    """A request is expected to be in time if it would be even this many times its average lateness later than expected. Of exponentially distributed delays nineteen of twenty are less."""
    random_deviation: float = 0.6
    """Executions may take any time if their mean deviation is more than this part of their mean."""
    adjust_every: int = 8
    """A known limit is computed anew after this many executions and one more."""
    confident_samples: int = 64
    """Executions after which not each one is learnt from."""
    quick_s: float = 0.002
    """Executions shorter than this many seconds end so often that few of them are learnt from."""
    learn_one_in: int = 16
    """One of sixteen executions is learnt from. It is chosen by its number times the golden ratio of 2^16: answers come in bursts, and the first of each took longest."""
    learn_after_s: float = 0.25
    """An execution that ends this many seconds after the last sample is always learnt from."""
    settled_deviation: float = 0.06
    """A cost is settled if estimates are off by less than this part of it on average. Then one of sixteen executions is learnt from, too."""
    expected_deviation: float = 0.25
    """Executions off from what was expected by more than this part of the cost always teach."""
    typical_one_in: int = 4
    """One of this many executions and one more counts for the typical cost of the model."""
    # selection
    tie_tolerance: float = 0.05
    """Scores are equal if they differ by less than this part of the time until then, or by less than is known of the cost. The model backend with less load, or the least recently picked, has the turn."""
    busy_execution_weight: float = 0.2
    """The part of its own execution that a request is charged with where it would end no later than many others do anyway (`ModelStats.tail_s`). There a slow model backend makes nobody late, and what it takes off the fast ones shortens everybody else's wait."""
    late_lead_s: float = 0.004
    """Seconds before its execution at which a request is sent ahead at the earliest where the next one to arrive may be better placed. The network delay comes on top."""
    yielding_lead_s: float = 0.002
    """The lead of requests that should not be in the way of more urgent ones."""
    # eligible_set
    overtaken_share: float = 0.65
    """A request may be overtaken for this part of `ModelStats.tail_s`, less one execution."""
    slow_ratio: float = 1.25
    """A model backend is slow if it takes this many times as long as the fastest."""
    rate_for_s: float = 0.05
    """The rate of all model backends is computed anew after this many seconds."""
    # model_queue
    min_retry_after_s: float = 0.01
    """A refused client is asked to come again after this many seconds at least."""
    capped_poll_s: float = 0.01
    """A backend with a limit of its own is checked for room this often, in seconds."""
    recheck_s: float = 0.001
    """A queue is checked again this many seconds after its best model backend should be free."""
    recheck_share: float = 0.25
    """A part of an execution that is added to `_RECHECK_S`."""
    same_work_ratio: float = 1.2
    """Requests are alike if one takes no more than this many times as long as the other."""
    in_time_tries: int = 8
    """Queued requests that are tried one after the other for one that is in time; they differ in size. """
    # model_stats
    tail_ratio: float = 1.3
    """A request that ends within this many times `ModelStats.tail_s` is no later than others."""
    unknown_s: float = 0.01
    """Seconds that an execution is assumed to take while no model backend is known."""
    idle_tie_tolerance: float = 0.25
    """Idle model backends that differ by less than this part take turns. That costs at most this part of an execution, and learnt costs differ by as much for no reason."""
    tail_weight: float = 0.005
    """The weight of one request in the tail. Rare crowds make the tail, so several of them have to be remembered."""
    tail_deviations: float = 3.0
    """The tail is this many mean deviations above the mean. The mean deviation of an exponential distribution is 0.74 of its mean."""
    tail_samples: int = 16
    """The tail is known from this many arrivals on."""
    tail_for_s: float = 1.0
    """The tail is forgotten when no request has arrived for this many seconds."""
    # scheduler
    arrivals_one_in: int = 4
    """One of four arrivals is used to learn how long requests take. It is chosen by its number times the golden ratio of 2^16: a client that takes turns among models leaves none of them out."""
    affinity_slack: float = 1.5
    """A request stays on its home backend unless another one would finish it in less than 1/1.5 of the time."""
    # waiting
    sampled_tenants: int = 8
    """Tenants that are compared for the one with the longest queue. The longest of the last time is remembered, so that it is found after a while."""
    default_due_s: float = 5.0
    """A request without a deadline counts as due this many seconds after its arrival. Its client has a deadline too, and did not name it. With much more, HTTP requests waited behind all gRPC requests, whose clients name theirs."""
    overtaken_executions: float = 10.0
    """It counts as due later by this many times its execution time, so that shorter requests pass it: a wait should be in proportion to the work that is asked for."""
    # cost
    window: int = 20
    """Samples that count: a change of speed is known after about as many. No request is refused by an estimate of fewer samples."""
    min_samples: int = 2
    """An estimate is used from this many samples on. Of two samples it is the smaller one."""
    first_samples: int = 4
    """The median of this many first samples counts."""
    stale_s: float = 10.0
    """An estimate that is older than this many seconds refuses nothing."""
    stale_samples: int = 2
    """An estimate that is older than `stale_s` counts as this many samples only."""
    surprises: int = 3
    """This many outliers in a row are a change. It takes more where executions run side by side: a few long ones keep all instances, so that they end one after the other."""
    max_extrapolation: float = 8.0
    """No estimate is more than this many typical executions: sizes of such requests are too far from the sizes that were seen."""
    clip_deviations: float = 4.0
    """The usual spread is this many mean deviations, and the next two."""
    clip_share: float = 0.25
    """This part of the estimate."""
    clip_s: float = 0.0002
    """This many seconds."""
    min_variation: float = 0.01
    """Rows or bytes explain something if their squared coefficient of variation is above this."""
    # batching
    batch_end_s: float = 0.002
    """Answers of one execution arrive within this many seconds of the first."""
    batch_rows_weight: float = 0.1
    """The weight of the past in the average number of rows of a request."""
    # unanswered
    overdue_s: float = 1.0
    """No request is overdue before that many seconds. A server that pauses, to collect garbage or to load a model, is silent for less, and clients wait for longer."""
    overdue_ratio: float = 5.0
    """A request is overdue after that many times its estimate. Of times that vary as randomly as those of an exponential distribution less than one in a hundred is longer."""
    max_overdue_backoff: int = 4
    """While further requests are not answered either, the next one waits twice as long, up to this many times. A backend that hangs gets few requests, and a client that sends one unanswerable request after the other cannot block its model for long."""
    # backend_penalty
    max_penalty: float = 8.0
    """The largest penalty. It keeps nearly all requests off where other backends can take them. With a larger one, backends that all fail half of the requests waited for each other."""
    penalty_half_life_s: float = 2.0
    """A penalty fades by half in this many seconds."""
    negligible_penalty: float = 1.1
    """A smaller penalty is none."""
    penalty_after_success: float = 0.5
    """The part of a penalty that a good answer leaves. It lasts where more than half of the requests fail."""
    # model_backend_index
    index_above: int = 12
    """Up to this many model backends are all compared: that costs about what the heaps cost."""
    index_classes: float = 10.0
    """Classes of costs per factor e. Idle model backends whose costs differ by less than about a tenth take turns."""
    index_tries: int = 8
    """After this many entries that do not suit all model backends are compared."""
    index_renew_s: float = 1.0
    """The heaps are made anew after this many seconds."""
    # adaptive
    adaptive_ends: int = 100
    """Ends of requests in one measurement, at least."""
    adaptive_pressure: float = 0.8
    """A measurement counts if the limit was reached at this part of the ends."""
    adaptive_step: float = 1.5
    """A trial multiplies or divides the limit by this factor."""
    adaptive_gain: float = 0.2
    """A higher limit is kept if this part of the step in concurrency comes back as throughput."""
    adaptive_hold: int = 10
    """Measurements that pass before the next trial, once a limit is found."""
    # backend_external_load
    external_late_intervals: float = 1.5
    """News that come so many intervals after the last ones are late."""
    external_negligible: float = 0.1
    """Parts of the time, and of a request, that are nothing."""
    # external_load
    # step_latency
    step_drift_per_s: float = 1.0 / 60.0
    """By which part the time of a quick step may have grown in a second without one as quick. Steps that waited behind others take long as well, so a backend is known to be slower only after some minutes; a faster one is known at once."""
    step_forget_s: float = 30.0
    """A backend is tried again as if it were unknown when it had no step for so many seconds while others had some: it may have been slow only for a while."""
    step_samples: int = 4
    """Steps before a latency counts: the first few may have loaded the model, or waited."""
    # open_sequences
    sequence_in_flight_weight: float = 0.25
    """A request in flight counts as a quarter of an open sequence: it is one step, of which a sequence has many. Figures of other weights: docs/decisions/0052-placing-sequences.md."""
    sequence_alike_ratio: float = 1.5
    """Backends whose steps differ by less count as equal: what was learnt of a few steps varies by as much by chance, and equal backends would get very different numbers of sequences."""
    # sequences
    pin_idle_factor: float = 10.0
    """A pin outlives Triton's own memory of the sequence by far: a late step should get Triton's answer from the backend that knows best."""
    # least_loaded
    pick_window: int = 16
    """Backends looked at per pick of a large set: 8 lengthen the p99 by up to 40 %, 16 do not."""
    pick_all_up_to: int = 24
    """Largest set that is scanned whole; here the scan costs what the window costs."""
    pick_stay: int = 128
    """Idle backends that are picked from one place before the next one has its turn."""
    # least_latency
    latency_weight: float = 0.1
    """What a lower latency counts."""
    latency_half_life: float = 500.0
    """Picks after which half of a latency is forgotten that nothing new is known of."""
    latency_failure_penalty: float = 10.0
    """How many times as slow a backend counts all of whose attempts fail."""
    latency_few_failures: float = 0.005
    """TODO"""


TUNING: Final = Tuning()
