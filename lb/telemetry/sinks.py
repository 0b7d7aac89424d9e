"""Several takers of finished requests as one."""

from __future__ import annotations

from lb.telemetry.record import RequestRecord, RequestSink


class SinkSet:
    """Hands every record to each sink, in order."""

    __slots__ = ("_sinks",)

    def __init__(self, *sinks: RequestSink) -> None:
        self._sinks = sinks

    def finished(self, record: RequestRecord) -> None:
        """Hand the record on."""
        for sink in self._sinks:
            sink.finished(record)


def combine(*sinks: RequestSink) -> RequestSink:
    """One sink for all; a single one is returned as it is, so it costs no extra call."""
    return sinks[0] if len(sinks) == 1 else SinkSet(*sinks)
