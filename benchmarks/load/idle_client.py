"""Holds idle connections: each makes one small call first, so that it is one that clients keep.

Run as `python -m benchmarks.load.idle_client http|grpc PORT COUNT`. Prints `holding COUNT` when all
are open, and ends with an error when the far side closes one; otherwise it holds them until it is
ended.
"""

from __future__ import annotations

import select
import sys

from benchmarks.load import payloads
from benchmarks.load.h2client import header_prefix
from benchmarks.load.links import Call, Http1Link, Http2Link, Link, LoadError

_ANSWER_LIMIT_S = 10.0
_SETTLE_S = 0.5
"""What the far side may still have to say after its answer: acknowledgements, credit."""


def hold(protocol: str, port: int, count: int) -> None:
    """Open `count` connections and keep them.

    Raises:
        LoadError: one was closed, or a call failed.
    """
    links: dict[int, Link] = {}
    poll = select.epoll()
    answered = 0

    def on_answer(_link: Link, _due: float, is_good: bool, _now: float) -> None:
        nonlocal answered
        answered += is_good

    call = _call(protocol)
    for number in range(1, count + 1):
        link = (Http2Link if protocol == "grpc" else Http1Link)(port, None, on_answer)
        links[link.fd] = link
        poll.register(link.fd, select.EPOLLIN)
        link.ask(call, 0.0)
        while answered < number:
            if not _turn(poll, links, _ANSWER_LIMIT_S):
                raise LoadError(f"connection {number} got no good answer")
    while _turn(poll, links, _SETTLE_S):
        pass
    print(f"holding {count}", flush=True)
    while True:
        _turn(poll, links, None)


def _turn(poll: select.epoll, links: dict[int, Link], timeout_s: float | None) -> bool:
    events = poll.poll(timeout_s)
    for fd, _ in events:
        links[fd].receive()
    return bool(events)


def _call(protocol: str) -> Call:
    if protocol == "grpc":
        return Call(True, header_prefix(payloads.INFER_PATH), payloads.small_grpc_request())
    body = payloads.small_http_request()
    head = (
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    return Call(False, head, body)


def main() -> None:
    protocol, port, count = sys.argv[1:]
    try:
        hold(protocol, int(port), int(count))
    except (LoadError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
