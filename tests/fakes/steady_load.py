"""Clients that ask all the time and forgive nothing: an answer that is missing is a failure.

Of each protocol one keeps its connection for as long as it may, and one takes a new one for every
request.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType

import grpc

from lb.kserve import inference_pb2 as pb
from lb.kserve import messages

_PATH = "/v2/models/sleeper/infer"
_TIMEOUT_S = 30.0
_PAUSE_S = 0.01
"""Between two requests of a client: what is tested needs the cores as well."""
_METHOD = messages.MODEL_INFER


def _body(milliseconds: int) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [milliseconds]}
    return json.dumps({"inputs": [tensor]}).encode()


def _message(milliseconds: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="sleeper")
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(milliseconds)
    return request


class SteadyLoad:
    """Asks a balancer from the beginning of the block to its end."""

    def __init__(self, http_address: str, grpc_address: str, *, milliseconds: int = 5) -> None:
        """
        Args:
            http_address: of the balancer.
            grpc_address: likewise.
            milliseconds: that each request takes at its backend.
        """
        self._http, self._grpc = http_address, grpc_address
        self._body, self._message = _body(milliseconds), _message(milliseconds)
        self._stopping = threading.Event()
        self._kept_http = http.client.HTTPConnection(http_address, timeout=_TIMEOUT_S)
        self._kept_grpc = grpc.insecure_channel(grpc_address)
        self.failures: list[str] = []
        self.answered: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._repeat, args=(name, ask), name=f"load {name}")
            for name, ask in {
                "kept http": self._ask_kept_http,
                "new http": self._ask_new_http,
                "kept grpc": self._ask_kept_grpc,
                "new grpc": self._ask_new_grpc,
            }.items()
        ]

    def __enter__(self) -> SteadyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._kept_http.close()
        self._kept_grpc.close()

    def check(self) -> None:
        """Fail the test unless every client was answered, and always well."""
        assert not self.failures, self.failures[:5]
        assert len(self.answered) == len(self._threads), self.answered

    def _repeat(self, name: str, ask: Callable[[], str]) -> None:
        while not self._stopping.is_set():
            try:
                failure = ask()
            except (OSError, http.client.HTTPException, grpc.RpcError) as error:
                failure = repr(error)
            if failure:
                self.failures.append(f"{name}: {failure}")
            else:
                self.answered[name] += 1
            self._stopping.wait(_PAUSE_S)

    def _ask_http(self, connection: http.client.HTTPConnection) -> str:
        connection.request("POST", _PATH, self._body)
        answer = connection.getresponse()
        content = answer.read()
        return "" if answer.status == 200 else f"{answer.status} {content[:200]!r}"

    def _ask_kept_http(self) -> str:
        return self._ask_http(self._kept_http)

    def _ask_new_http(self) -> str:
        connection = http.client.HTTPConnection(self._http, timeout=_TIMEOUT_S)
        try:
            return self._ask_http(connection)
        finally:
            connection.close()

    def _ask_grpc(self, channel: grpc.Channel) -> str:
        call = channel.unary_unary(
            _METHOD.path, request_serializer=_METHOD.encode, response_deserializer=_METHOD.decode
        )
        call(self._message, timeout=_TIMEOUT_S)
        return ""

    def _ask_kept_grpc(self) -> str:
        return self._ask_grpc(self._kept_grpc)

    def _ask_new_grpc(self) -> str:
        # Channels with equal options share connections otherwise.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._grpc, options=options) as channel:
            return self._ask_grpc(channel)
