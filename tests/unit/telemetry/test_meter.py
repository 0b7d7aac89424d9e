"""What the meter counts, and that no client can make it grow."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from operator import attrgetter

import pytest

from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Histogram
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Reason
from lb.kserve.operations import MODEL_READY, MODEL_STREAM_INFER
from lb.telemetry.meter import MAX_CODES, MAX_OPERATIONS, AnswerTimes, Meter
from tests.fakes.backends import make_backend
from tests.fakes.records import PlainRecord, grpc_record


def test_requests_are_counted_by_backend_and_code() -> None:
    meter, backend = Meter(), make_backend()
    for status in (200, 200, 503):
        meter.finished(PlainRecord(backend=backend, status=status))
    meter.finished(grpc_record(backend=backend))
    meter.finished(PlainRecord(status=503))
    http, grpc = meter.traffic
    assert http.answers == {backend: {200: 2, 503: 1}, None: {503: 1}}
    assert grpc.answers == {backend: {0: 1}}


def test_codes_that_no_standard_knows_share_one_entry() -> None:
    meter, backend = Meter(), make_backend()
    for code in range(600, 2000):
        meter.finished(PlainRecord(backend=backend, status=code))
    (codes,) = meter.traffic[AppProtocol.HTTP].answers.values()
    assert list(codes.values()) == [1400]


def test_made_up_models_cannot_use_up_the_labels() -> None:
    meter = Meter(max_models=2)
    for number in range(1000):
        meter.finished(PlainRecord(model=b"made-up-%d" % number, status=400))
    meter.finished(PlainRecord(model=b"resnet"))
    models = meter.traffic[AppProtocol.HTTP].models
    assert set(models) == {b"other", b"resnet"}
    assert models[b"other"].codes == {400: 1000}
    assert models[b"resnet"].codes == {200: 1}


@pytest.mark.parametrize(
    "operation", [MODEL_READY, MODEL_STREAM_INFER], ids=lambda operation: operation.name
)
def test_good_answers_that_name_no_real_model_give_no_label(operation: Operation) -> None:
    meter = Meter(max_models=2)
    for number in range(10):
        meter.finished(grpc_record(model=b"made-up-%d" % number, operation=operation))
    meter.finished(grpc_record(model=b"resnet", operation=operation))
    meter.finished(grpc_record(model=b"resnet"))
    models = meter.traffic[AppProtocol.GRPC].models
    assert models[b"other"].codes == {0: 10}
    assert models[b"resnet"].codes == {0: 2}


def test_a_failure_of_a_model_that_works_is_counted_for_it() -> None:
    meter = Meter()
    meter.finished(PlainRecord(model=b"resnet"))
    meter.finished(grpc_record(model=b"resnet", grpc_status=14))
    usage = meter.traffic[AppProtocol.GRPC].models[b"resnet"]
    assert usage.codes == {14: 1}
    assert not any(usage.durations.counts)


def test_only_successful_inferences_have_a_duration_by_model() -> None:
    meter = Meter()
    metadata = Operation("ModelMetadata", OperationKind.READ)
    for record in (
        PlainRecord(model=b"resnet", started_at=1.0, ended_at=1.25),
        grpc_record(model=b"resnet", started_at=1.0, ended_at=1.5),
        PlainRecord(model=b"resnet", started_at=1.0, ended_at=9.0, status=504),
        PlainRecord(model=b"resnet", started_at=1.0, ended_at=9.0, operation=metadata),
    ):
        meter.finished(record)
    ((model, times),) = meter.model_durations(attrgetter("durations"))
    assert (model, sum(times.counts), times.sum) == (b"resnet", 2, 0.75)


def test_rare_codes_of_a_model_are_counted_together() -> None:
    meter = Meter()
    for status in range(200, 230):
        meter.finished(PlainRecord(model=b"resnet", status=status))
    codes = meter.traffic[AppProtocol.HTTP].models[b"resnet"].codes
    assert len(codes) == MAX_CODES + 1
    assert sum(codes.values()) == 30


def test_answers_of_a_stream_are_timed_from_its_first_request_on() -> None:
    meter = Meter(max_models=1)
    stream = grpc_record(model=b"")
    times = AnswerTimes(meter.traffic[AppProtocol.GRPC], stream, 10.0)
    stream.model = b"llama"
    for now in (12.0, 12.25, 12.75):
        times.on_answer(now)
    usage = meter.traffic[AppProtocol.GRPC].models[b"llama"]
    assert (sum(usage.first_answers.counts), usage.first_answers.sum) == (1, 2.0)
    assert (sum(usage.intervals.counts), usage.intervals.sum) == (2, 0.75)


def test_each_time_of_an_answer_is_counted_in_the_bucket_that_a_search_finds() -> None:
    meter = Meter(max_models=1)
    times = AnswerTimes(meter.traffic[AppProtocol.GRPC], grpc_record(model=b"llama"), 0.0)
    times.on_answer(0.0)
    intervals = [0.0, *LATENCY_BOUNDS_S, *(1.1 * bound for bound in LATENCY_BOUNDS_S)]
    expected = Histogram()
    for pair in itertools.product(intervals, repeat=2):  # each after each
        for interval in pair:
            times.last_at = 0.0
            times.on_answer(interval)
            expected.counts[bisect_left(LATENCY_BOUNDS_S, interval)] += 1
    usage = meter.traffic[AppProtocol.GRPC].models[b"llama"]
    assert usage.intervals.counts == expected.counts
    assert all(expected.counts)


def test_models_beyond_the_cap_are_other_on_both_protocols() -> None:
    meter = Meter(max_models=1)
    meter.finished(PlainRecord(model=b"first"))
    meter.finished(PlainRecord(model=b"second"))
    meter.finished(grpc_record(model=b"first"))
    http, grpc = meter.traffic
    assert set(http.models) == {b"first", b"other"}
    assert set(grpc.models) == {b"first"}


def test_requests_without_a_model_are_counted_for_none() -> None:
    meter = Meter()
    meter.finished(PlainRecord(model=b""))
    assert not meter.traffic[AppProtocol.HTTP].models


def test_operations_are_capped() -> None:
    meter = Meter()
    for number in range(MAX_OPERATIONS + 10):
        operation = Operation(f"Call{number}", OperationKind.READ)
        meter.finished(PlainRecord(operation=operation))
    operations = meter.traffic[AppProtocol.HTTP].operations
    assert len(operations) == MAX_OPERATIONS + 1
    assert sum(operations["other"].durations.counts) == 10


def test_durations_are_kept_apart_by_kind_of_operation() -> None:
    meter = Meter()
    stream = Operation("ModelStreamInfer", OperationKind.STREAM)
    meter.finished(grpc_record(started_at=1.0, ended_at=1.25))
    meter.finished(grpc_record(operation=stream, started_at=1.0, ended_at=3601.0))
    sums = {kind: total.sum for kind, total in meter.traffic[AppProtocol.GRPC].durations()}
    assert sums[OperationKind.INFERENCE] == 0.25
    assert sums[OperationKind.STREAM] == 3600.0
    assert sums[OperationKind.READ] == 0.0


def test_retries_are_the_attempts_beyond_the_first() -> None:
    meter = Meter()
    for attempts in (0, 1, 3):
        meter.finished(PlainRecord(attempts=attempts, backend=make_backend()))
    assert meter.traffic[AppProtocol.HTTP].retries == 2


def test_the_first_attempts_at_the_parts_of_a_batch_are_no_retries() -> None:
    class Batch(PlainRecord):
        parts = 5

    meter = Meter()
    for attempts in (3, 5, 6):  # one failed before all parts had begun
        meter.finished(Batch(attempts=attempts, backend=make_backend()))
    assert meter.traffic[AppProtocol.HTTP].retries == 1


def test_questions_to_all_backends_are_no_retries() -> None:
    meter = Meter()
    meter.finished(PlainRecord(attempts=3, backend=None))
    assert meter.traffic[AppProtocol.HTTP].retries == 0


def test_reasons_and_connection_errors_are_counted_apart() -> None:
    meter = Meter()
    meter.finished(PlainRecord(reason=Reason.NO_BACKEND, status=503))
    http = meter.traffic[AppProtocol.HTTP]
    http.connection_failed(Reason.BAD_REQUEST)
    http.connection_failed(Reason.BAD_REQUEST)
    assert http.reasons == {Reason.NO_BACKEND: 1}
    assert http.connection_errors == {Reason.BAD_REQUEST: 2}


def test_backends_that_left_are_forgotten() -> None:
    meter, stays, leaves = Meter(), make_backend("stays"), make_backend("leaves")
    for backend in (stays, leaves, None):
        meter.finished(PlainRecord(backend=backend))
    meter.retain({stays})
    assert set(meter.traffic[AppProtocol.HTTP].answers) == {stays, None}
