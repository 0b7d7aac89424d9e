"""The HTTP side of a simulated Triton: its routes, status codes and headers.

Paths are matched as they stand on the wire, with Triton's own patterns: Triton decodes no percent
signs and takes no trailing slash, so neither may this.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from google.protobuf.message import Message

from lb.simulator import http_generate, http_infer
from lb.simulator.errors import ErrorKind, TritonError, invalid
from lb.simulator.http_json import Json, as_json, dumps
from lb.simulator.models import Model, config_of, metadata_of
from lb.simulator.server import (
    EXTENSIONS,
    LOG_SETTINGS,
    NAME,
    TRACE_SETTINGS,
    TRITON_VERSION,
    SimulatedTriton,
)
from lb.simulator.tensors import Tensor

JSON_SIZE: Final = "Inference-Header-Content-Length"

Handler = Callable[[web.Request, re.Match[str]], Awaitable[web.StreamResponse]]


def make_http_application(triton: SimulatedTriton) -> web.Application:
    """Return the application that answers as Triton's HTTP port does."""
    service = _HttpService(triton)
    application = web.Application(client_max_size=0)
    application.router.add_route("*", "/{path:.*}", service.handle)
    application.on_response_prepare.append(_strip_headers)
    return application


async def _strip_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Remove what aiohttp adds and Triton does not send."""
    response.headers.popall("Server", None)
    response.headers.popall("Date", None)


class _HttpService:
    def __init__(self, triton: SimulatedTriton) -> None:
        self._triton = triton
        model = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
        self._routes: tuple[tuple[str, re.Pattern[str], Handler], ...] = tuple(
            (method, re.compile(pattern), handler)
            for method, pattern, handler in (
                ("GET", r"/v2/health/(?:live|ready)", self._health),
                ("GET", r"/v2", self._server_metadata),
                ("GET", r"/v2/models/stats", self._statistics),
                ("GET", model, self._model_metadata),
                ("GET", f"{model}/ready", self._model_ready),
                ("GET", f"{model}/config", self._model_config),
                ("GET", f"{model}/stats", self._statistics),
                ("POST", f"{model}/infer", self._infer),
                ("POST", f"{model}/generate", self._generate),
                ("POST", f"{model}/generate_stream", self._generate_stream),
                ("POST", r"/v2/repository/index", self._index),
                ("POST", r"/v2/repository/models/([^/]+)/(load|unload)", self._control),
                ("GET", r"/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/status", self._regions),
                ("GET", r"/v2/logging", self._log_settings),
                ("GET", r"/v2/trace/setting", self._trace_settings),
            )
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        path, _, _ = request.raw_path.partition("?")
        for method, pattern, handler in self._routes:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if request.method != method:
                return _json_answer({"error": "Method Not Allowed"}, 405)
            try:
                return await handler(request, match)
            except TritonError as error:
                return _json_answer({"error": error.text}, error.fault.http_status)
        return _json_answer({"error": "Not Found"}, 404, early=True)

    def _model(self, match: re.Match[str]) -> Model:
        return self._triton.find(match["model"], match["version"] or "")

    # Health, metadata, statistics

    async def _health(self, request: web.Request, match: re.Match[str]) -> web.Response:
        return web.Response(content_type="text/plain")

    async def _server_metadata(self, request: web.Request, match: re.Match[str]) -> web.Response:
        return _json_answer(
            {"name": NAME, "version": TRITON_VERSION, "extensions": list(EXTENSIONS)}
        )

    async def _model_metadata(self, request: web.Request, match: re.Match[str]) -> web.Response:
        return _message_answer(metadata_of(self._model(match)))

    async def _model_ready(self, request: web.Request, match: re.Match[str]) -> web.Response:
        if not self._triton.is_model_ready(match["model"], match["version"] or ""):
            return _json_answer({"error": "Model version not ready"}, 400, early=True)
        return web.Response(content_type="text/plain")

    async def _model_config(self, request: web.Request, match: re.Match[str]) -> web.Response:
        return _message_answer(config_of(self._model(match)))

    async def _statistics(self, request: web.Request, match: re.Match[str]) -> web.Response:
        named = match.groupdict()
        return _message_answer(
            self._triton.statistics(named.get("model") or "", named.get("version") or "")
        )

    # Control

    async def _index(self, request: web.Request, match: re.Match[str]) -> web.Response:
        models = self._triton.index().models
        return _json_answer(
            [{"name": m.name, "version": m.version, "state": m.state} for m in models]
        )

    async def _control(self, request: web.Request, match: re.Match[str]) -> web.Response:
        name, verb = match[1], match[2]
        (self._triton.load if verb == "load" else self._triton.unload)(name)
        return web.Response(content_type="text/plain")

    async def _regions(self, request: web.Request, match: re.Match[str]) -> web.Response:
        return _json_answer([])

    async def _log_settings(self, request: web.Request, match: re.Match[str]) -> web.Response:
        return _json_answer(dict(LOG_SETTINGS))

    async def _trace_settings(self, request: web.Request, match: re.Match[str]) -> web.Response:
        settings: dict[str, Json] = dict(TRACE_SETTINGS)
        return _json_answer(settings | {"trace_level": [TRACE_SETTINGS["trace_level"]]})

    # Inference

    async def _infer(self, request: web.Request, match: re.Match[str]) -> web.Response:
        encoding = request.headers.get("Content-Encoding", "identity")
        try:
            model = self._http_model(match)
            if encoding not in ("identity", *_WINDOW_BITS):
                raise TritonError(ErrorKind.UNSUPPORTED, "Unsupported compression type")
            body = _decompressed(encoding, await request.read())
            json_size = _json_size(request, len(body))
        except TritonError as error:
            # What Triton finds before it reads the JSON part has no content type of its own.
            response = _json_answer({"error": error.text}, error.fault.http_status, early=True)
            if encoding not in ("identity", *_WINDOW_BITS):
                response.headers["Accept-Encoding"] = ", ".join(_WINDOW_BITS)
            return response
        infer = http_infer.parse(model, match["version"] or "", body, json_size)
        answers: list[tuple[Tensor, ...]] = []

        async def respond(tensors: tuple[Tensor, ...]) -> None:
            answers.append(tensors)

        await self._triton.infer(infer.request, respond)
        (tensors,) = answers
        return _infer_answer(infer, tensors, request.headers.get("Accept-Encoding", ""))

    def _http_model(self, match: re.Match[str]) -> Model:
        model = self._model(match)
        if model.decoupled:
            raise TritonError(
                ErrorKind.UNSUPPORTED,
                "HTTP end point doesn't support models with decoupled transaction policy",
            )
        return model

    async def _generate(self, request: web.Request, match: re.Match[str]) -> web.StreamResponse:
        model = self._model(match)
        generate = http_generate.parse(model, match["version"] or "", await _plain_body(request))
        answers: list[bytes] = []

        async def respond(tensors: tuple[Tensor, ...]) -> None:
            answers.append(http_generate.render(generate, tensors))

        await self._triton.infer(generate, respond)
        if len(answers) != 1:
            answers = [
                dumps(
                    {
                        "error": "generate expects model to produce exactly 1 response, use"
                        " generate stream for model that generates various number of responses"
                    }
                )
            ]
        stream = _Events(request, "application/json")
        await stream.send(answers[0])
        return await stream.end()

    async def _generate_stream(
        self, request: web.Request, match: re.Match[str]
    ) -> web.StreamResponse:
        model = self._model(match)
        generate = http_generate.parse(model, match["version"] or "", await _plain_body(request))
        stream = _Events(request, "text/event-stream; charset=utf-8")

        async def respond(tensors: tuple[Tensor, ...]) -> None:
            await stream.send(b"data: " + http_generate.render(generate, tensors) + b"\n\n")

        await self._triton.infer(generate, respond)
        return await stream.end()


class _Events:
    """A chunked answer whose head goes out with its first piece, one chunk per piece."""

    def __init__(self, request: web.Request, content_type: str) -> None:
        self._request = request
        self._response = web.StreamResponse(headers={"Content-Type": content_type})

    async def send(self, piece: bytes) -> None:
        """Send one piece.

        Raises:
            ConnectionError: the client is gone.
        """
        await self._start()
        await self._response.write(piece)

    async def end(self) -> web.StreamResponse:
        """End the answer; return it for aiohttp."""
        await self._start()
        await self._response.write_eof()
        return self._response

    async def _start(self) -> None:
        if not self._response.prepared:
            self._response.enable_chunked_encoding()
            await self._response.prepare(self._request)


def _json_answer(value: Json, status: int = 200, *, early: bool = False) -> web.Response:
    return web.Response(
        body=dumps(value),
        status=status,
        reason="Not Allowed" if status == 405 else None,
        headers={"Content-Type": "text/plain" if early else "application/json"},
    )


def _infer_answer(
    infer: http_infer.HttpInfer, tensors: tuple[Tensor, ...], accept: str
) -> web.Response:
    body, json_size = http_infer.render(infer, tensors)
    headers = {"Content-Type": "application/json"}
    if json_size is not None:
        headers = {"Content-Type": "application/octet-stream", JSON_SIZE: str(json_size)}
    encoding = _accepted_encoding(accept)
    if encoding is not None:
        headers["Content-Encoding"] = encoding
        body = _compressed(encoding, body)
    return web.Response(body=body, headers=headers)


def _message_answer(message: Message) -> web.Response:
    return _json_answer(as_json(message))


def _json_size(request: web.Request, body_size: int) -> int | None:
    """Return the length of the JSON part; what is no number counts as 0, as Triton reads it."""
    value = request.headers.get(JSON_SIZE)
    if value is None:
        return None
    size = int(value) if re.fullmatch("[0-9]+", value) else 0
    if size > body_size:
        raise invalid(f"inference header size should be in range (0, {body_size}), got: {size}")
    return size


async def _plain_body(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise invalid("Unsupported content-encoding, only 'identity' is supported.")
    return await request.read()


def _accepted_encoding(accept: str) -> str | None:
    """Return the first of gzip and deflate that an Accept-Encoding field names."""
    for item in accept.split(","):
        name = item.partition(";")[0].strip()
        if name in ("gzip", "deflate"):
            return name
    return None


_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""What zlib wants to hear for the two formats; `deflate` in HTTP means zlib's."""


def _decompressed(encoding: str, body: bytes) -> bytes:
    if encoding == "identity":
        return body
    try:
        return zlib.decompress(body, _WINDOW_BITS[encoding])
    except zlib.error:
        return b""  # Triton goes on with an empty body


def _compressed(encoding: str, body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return compressor.compress(body) + compressor.flush()
