"""`triton-lb replay`: sends the requests of a payload log to a server and compares its answers.

Requests go over HTTP, one after the other, whichever protocol they came by: both say the same.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import stat
import sys
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote

from lb.domain.backend import parse_address
from lb.kserve.payloads import binary_of, numbers_of, read_http, tensors_of
from lb.payloads.lines import REQUEST, RESPONSE, STREAM_PATH

_TIMEOUT_S: Final = 300.0
"""For connecting, and for each pause in an answer; models may be slow."""
_SHOWN: Final = 10
"""Differences that are printed."""
_SIZE: Final = "inference-header-content-length"

Event = dict[str, Any]


class NoPayloadLog(Exception):
    """A file is no payload log."""


class NotReplayable(Exception):
    """An exchange lacks what a replay needs; the message says what."""


class Difference(Exception):
    """An answer is not the one of the log; the message says where."""


class Sent(NamedTuple):
    """A request over HTTP."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far numbers with a fraction may differ: as in `numpy.isclose`."""

    atol: float = 0.0
    rtol: float = 0.0

    def admits(self, datatype: str, expected: bytes, found: bytes) -> bool:
        """Whether two tensors in their binary form are alike."""
        if expected == found:
            return True
        before, after = numbers_of(datatype, expected), numbers_of(datatype, found)
        return (
            before is not None
            and after is not None
            and len(before) == len(after)
            and all(map(self._admits, before, after))
        )

    def _admits(self, expected: float, found: float) -> bool:
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        return expected == found or abs(expected - found) <= self.atol + self.rtol * abs(expected)


def replay(file: str, to: str, tolerance: Tolerance) -> int:
    """Replay a payload log and print how many answers were the same.

    Args:
        file: the log.
        to: HTTP address of the server.
        tolerance: how far answers may differ.

    Returns:
        The exit code: 1 if an answer differs, nothing could be replayed, or the server or the file
        cannot be read.
    """
    same, skipped = 0, dict[str, int]()
    differences: list[str] = []
    try:
        address = parse_address(to.removeprefix("http://").rstrip("/"))
        with (
            Path(file).open("rb") as lines,
            closing(
                http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
            ) as connection,
        ):
            for request, response in exchanges(_present(lines)):
                try:
                    _replay(connection, request, response, tolerance)
                    same += 1
                except NotReplayable as why:
                    skipped[str(why)] = skipped.get(str(why), 0) + 1
                except Difference as difference:
                    differences.append(f"{request['id']}: {difference}")
    except NoPayloadLog as error:
        print(f"triton-lb replay: {file}: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        print(f"triton-lb replay: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    _report(same, differences, skipped)
    return 1 if differences or not same else 0


def _present(file: BinaryIO) -> Iterator[str]:
    """The lines that a file has now. The requests that are replayed may be logged there."""
    status = os.fstat(file.fileno())
    left = status.st_size if stat.S_ISREG(status.st_mode) else math.inf
    for line in file:
        if left <= 0:
            return
        left -= len(line)
        yield line.decode("utf-8", "replace")


def exchanges(lines: Iterable[str]) -> Iterator[tuple[Event, Event]]:
    """Requests and responses of a payload log.

    A response follows its request. On streams it has the same id, and messages without an id of
    their own are left out.

    Raises:
        NoPayloadLog: a line is no event.
    """
    request: Event | None = None
    unanswered: dict[str, Event] = {}
    """Requests on streams, by their ids."""
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise NoPayloadLog(f"line {number} is no event of a payload log")
        if event.get("path") == STREAM_PATH.decode():
            if "/" not in event["id"]:
                continue
            if event["type"] == REQUEST:
                unanswered[event["id"]] = event
            elif event["id"] in unanswered:
                yield unanswered.pop(event["id"]), event
        elif event.get("type") == REQUEST:
            request = event
        elif event.get("type") == RESPONSE and request is not None:
            if event.get("id") == request["id"]:
                yield request, event
            request = None


def request_of(event: Event) -> Sent:
    """Return the request of an event as it goes over HTTP.

    Raises:
        NotReplayable: the event does not have all of it.
    """
    if "omitted" in event:
        raise NotReplayable(f"the request is omitted ({event['omitted']})")
    is_grpc = event["protocol"] == "grpc"
    data = event.get("data")
    if isinstance(data, dict) and "inputs" in data:
        return _inference(data, _grpc_path(data) if is_grpc else event["path"])
    if is_grpc:
        raise NotReplayable("the request could not be read")
    headers = {"content-type": event.get("datacontenttype", "application/json")}
    if data is not None:
        return Sent(event["path"], headers, json.dumps(data).encode())
    if "contentencoding" in event:
        headers["content-encoding"] = event["contentencoding"]
    if "inferenceheadercontentlength" in event:
        headers[_SIZE] = str(event["inferenceheadercontentlength"])
    return Sent(event["path"], headers, b64decode(event.get("data_base64", "")))


def _grpc_path(data: Event) -> str:
    version = data.get("model_version")
    path = f"/v2/models/{quote(data['model_name'], safe='')}"
    return f"{path}/versions/{version}/infer" if version else f"{path}/infer"


def _inference(data: Event, path: str) -> Sent:
    """A v2 inference, whose answer has all tensors in their binary form."""
    members: dict[str, Any] = {key: data[key] for key in ("id", "parameters") if key in data}
    parameters = dict(members.get("parameters") or {})
    outputs = [dict(output) for output in data.get("outputs", ())]
    for output in outputs:
        output["parameters"] = {**output.get("parameters", {}), "binary_data": True}
    if outputs:
        members["outputs"] = outputs
    else:
        parameters["binary_data_output"] = True
    inputs, binary = [], []
    for tensor in data["inputs"]:
        if tensor.get("left_out"):
            raise NotReplayable("a tensor of the request is left out")
        sent = dict(tensor)
        if "data_base64" in sent:
            raw = b64decode(sent.pop("data_base64"))
            sent["parameters"] = {**sent.get("parameters", {}), "binary_data_size": len(raw)}
            binary.append(raw)
        inputs.append(sent)
    head = json.dumps({**members, "parameters": parameters, "inputs": inputs}).encode()
    headers = {"content-type": "application/octet-stream", _SIZE: str(len(head))}
    return Sent(path, headers, b"".join((head, *binary)))


def _replay(
    connection: http.client.HTTPConnection, request: Event, response: Event, tolerance: Tolerance
) -> None:
    """Send a request and compare the answer.

    Raises:
        NotReplayable: the log lacks the request or the response.
        Difference: the answers differ.
    """
    sent = request_of(request)
    if response["status"] == "none" or "reason" in response:
        raise NotReplayable("no server had answered it")
    if "omitted" in response:
        raise NotReplayable(f"the response is omitted ({response['omitted']})")
    answer, body = _ask(connection, sent)
    _compare_status(response, answer.status)
    if answer.status != http.client.OK:
        return
    try:
        _compare(response, answer.getheader(_SIZE), body, tolerance)
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Difference(f"cannot be compared: {str(error) or type(error).__name__}") from error


def _ask(connection: http.client.HTTPConnection, sent: Sent) -> tuple[HTTPResponse, bytes]:
    """Send a request; once more where the server has closed the connection that was kept."""
    was_kept = connection.sock is not None
    try:
        connection.request("POST", sent.path, sent.body, sent.headers)
        answer = connection.getresponse()
        return answer, answer.read()
    except ConnectionError:
        if not was_kept:
            raise
        connection.close()
        return _ask(connection, sent)


def _compare(response: Event, size: str | None, body: bytes, tolerance: Tolerance) -> None:
    """Compare the body of a good answer.

    Args:
        response: of the log.
        size: how much of the body is JSON, as the answer says.
        body: of the answer.
        tolerance: how far numbers may differ.

    Raises:
        NotReplayable: the log lacks the data of a tensor.
        Difference: they differ.
        LookupError, OverflowError, RecursionError, TypeError, ValueError: it cannot be read.
    """
    expected = response.get("data")
    if isinstance(expected, dict) and "outputs" in expected:
        found = read_http(body, len(body) if size is None else int(size), "outputs")
        compare_outputs(expected, found, tolerance)
    elif isinstance(expected, dict):
        _differ_unless(json.loads(body) == expected, "another JSON")
    elif expected is not None:
        _differ_unless(body.decode() == expected, "another text")
    else:
        _differ_unless(body == b64decode(response.get("data_base64", "")), "other bytes")


def _compare_status(response: Event, status: int) -> None:
    expected = response["status"]
    if response["protocol"] == "grpc":
        # An error has another code in each protocol.
        _differ_unless((expected == "OK") is (status == http.client.OK), f"status {status}")
    else:
        _differ_unless(expected == str(status), f"status {status} instead of {expected}")


def compare_outputs(expected: Event, found: Event, tolerance: Tolerance) -> None:
    """Compare the tensors of two responses.

    Raises:
        NotReplayable: the log lacks the data of a tensor.
        Difference: they differ; the message says where.
    """
    after = {tensor["name"]: tensor for tensor in tensors_of(found, "outputs")}
    before = tensors_of(expected, "outputs")
    names = [tensor["name"] for tensor in before]
    _differ_unless(set(names) == after.keys(), f"outputs {', '.join(sorted(after))}")
    for tensor in before:
        name = tensor["name"]
        if tensor.get("left_out"):
            raise NotReplayable("a tensor of the response is left out")
        other = after[name]
        for member in ("datatype", "shape"):
            _differ_unless(tensor[member] == other[member], f"{name}: {member} {other[member]}")
        is_alike = tolerance.admits(tensor["datatype"], binary_of(tensor), binary_of(other))
        _differ_unless(is_alike, f"{name}: other values")


def _differ_unless(is_same: bool, what: str) -> None:
    if not is_same:
        raise Difference(what)


def _report(same: int, differences: list[str], skipped: dict[str, int]) -> None:
    count = same + len(differences)
    print(f"{count} replayed: {same} same, {len(differences)} different")
    for line in differences[:_SHOWN]:
        print(f"  {line}")
    if len(differences) > _SHOWN:
        print(f"  and {len(differences) - _SHOWN} more")
    for why, times in skipped.items():
        print(f"{times} skipped: {why}")
