"""Records are slots only: they are made once per request."""

from __future__ import annotations

from lb.telemetry.record import RequestRecord, SinkSet, combine
from tests.fakes.records import PlainRecord


def test_a_record_has_no_dictionary() -> None:
    assert not hasattr(RequestRecord(), "__dict__")


class Kept:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def test_each_sink_gets_each_record() -> None:
    sinks = Kept(), Kept()
    record = PlainRecord()
    combine(*sinks).finished(record)
    assert [sink.records for sink in sinks] == [[record], [record]]


def test_a_single_sink_is_not_wrapped() -> None:
    sink = Kept()
    assert combine(sink) is sink
    assert isinstance(combine(sink, sink), SinkSet)
