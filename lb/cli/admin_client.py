"""The client of the admin API: where it is, its token, requests, answers as models."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from lb.domain.backend import Address, parse_address

ADDRESS_VARIABLE: Final = "TRITON_LB_ADMIN"
TOKEN_VARIABLE: Final = "TRITON_LB_ADMIN_TOKEN"
_SCHEME: Final = "http://"
_TIMEOUT_S: Final = 10.0
_LONGEST_TOKEN: Final = 1024
_LONGEST_ANSWER: Final = 64 << 20
"""Bytes. All that there is to say of 10,000 backends takes about 10 MB."""
_FINE: Final = (http.client.OK, http.client.CREATED)

ModelT = TypeVar("ModelT", bound=BaseModel)


class Writer(Protocol):
    """What `print` needs of a stream."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> None:
        """Let go of it."""


class AdminError(Exception):
    """The admin API cannot be reached, or refused; the message is for the user."""


class NoSuchBackendError(AdminError):
    """There is no backend of that name."""


class ConflictError(AdminError):
    """What was asked for does not fit the state that the process is in."""


_ERRORS: Final = {
    http.client.NOT_FOUND: NoSuchBackendError,
    http.client.CONFLICT: ConflictError,
}


@dataclass(frozen=True, slots=True)
class Document(Generic[ModelT]):
    """An answer of the admin API."""

    received: Any
    """The JSON as it came, with fields that this version does not know."""
    model: ModelT


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """Where the admin API is, and what it wants to see."""

    address: str
    """`http://HOST:PORT`, `HOST:PORT` or `unix:PATH`."""
    token: str = field(default="", repr=False)
    timeout_s: float = _TIMEOUT_S
    """For connecting, and for each pause in its answer."""
    as_json: bool = False
    """Whether commands print the JSON document of the API instead of a table."""
    out: Writer | None = field(default=None, repr=False)
    """Where to print; None is standard output."""
    err: Writer | None = field(default=None, repr=False)
    """Where to complain; None is standard error."""

    def call(
        self, method: str, path: str, answer: type[ModelT], body: BaseModel | None = None
    ) -> ModelT:
        """Send a request and return its answer as the model `answer`.

        Raises:
            NoSuchBackendError, ConflictError: see there.
            AdminError: the server was not reached, refused, or is not the admin API.
        """
        return self._parse(self._ask(method, path, body), answer)

    def read(self, path: str, answer: type[ModelT]) -> Document[ModelT]:
        """Send a GET and return its answer.

        Raises:
            AdminError: as of `call`.
        """
        received = self._ask("GET", path)
        return Document(received, self._parse(received, answer))

    def write(self, document: Document[ModelT], lines: Callable[[ModelT], list[str]]) -> None:
        """Print an answer: as JSON where the user wants that, else the lines made from it."""
        if self.as_json:
            # All characters are ASCII, so nothing in it can control a terminal.
            print(json.dumps(document.received), file=self.out)
        else:
            print(*lines(document.model), sep="\n", file=self.out)

    def fail(self, error: AdminError) -> int:
        """Print an error and return the exit code."""
        self.note(f"triton-lb: {error}")
        return 1

    def note(self, text: str) -> None:
        """Print what is not the outcome, where errors go."""
        print(text, file=self.err or sys.stderr, flush=True)

    def _parse(self, document: Any, answer: type[ModelT]) -> ModelT:
        try:
            return answer.model_validate(document)
        except ValidationError as error:
            raise self._foreign() from error

    def _ask(self, method: str, path: str, body: BaseModel | None = None) -> Any:
        """Return the JSON of the answer."""
        connection = self._connection()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        sent = None
        if body is not None:
            sent = body.model_dump_json(exclude_unset=True).encode()
            headers["Content-Type"] = "application/json"
        is_asked = False
        try:
            connection.request(method, path, sent, headers)
            is_asked = True
            response = connection.getresponse()
            received = response.read(_LONGEST_ANSWER + 1)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            if is_asked:
                raise AdminError(
                    f"the admin API at {self.address} gave no answer: {reason}; "
                    "what was asked for may have been done, or go on"
                ) from error
            raise AdminError(
                f"cannot reach the admin API at {self.address}: {reason}; "
                f"is triton-lb running there? --admin or {ADDRESS_VARIABLE} names another address"
            ) from error
        except http.client.HTTPException as error:
            raise self._foreign() from error
        finally:
            connection.close()
        if len(received) > _LONGEST_ANSWER:
            raise self._foreign()
        try:
            document = json.loads(received)
        except (ValueError, RecursionError) as error:
            raise self._foreign() from error
        if response.status == http.client.UNAUTHORIZED:
            problem = "does not know this token" if self.token else "needs a token"
            raise AdminError(
                f"the admin API {problem}; give one by --token-file FILE or {TOKEN_VARIABLE}"
            )
        if response.status not in _FINE:
            said = _reasons(document, response.status)
            raise _ERRORS.get(response.status, AdminError)(said)
        return document

    def _foreign(self) -> AdminError:
        """Make the error that says that another server answers."""
        return AdminError(f"what answers at {self.address} is not the admin API of triton-lb")

    def _connection(self) -> http.client.HTTPConnection:
        address = parse_target(self.address, "--admin")
        if address.path:
            return _UnixConnection(address.path, self.timeout_s)
        return http.client.HTTPConnection(address.host, address.port, timeout=self.timeout_s)


def parse_target(text: str, source: str) -> Address:
    """Parse where an admin API is: `http://HOST:PORT`, `HOST:PORT` or `unix:PATH`.

    Args:
        text: what the user gave.
        source: the option or variable that it comes from, for errors.

    Raises:
        AdminError: it is no such address.
    """
    expected = f"{source}: expected http://HOST:PORT, HOST:PORT or unix:PATH, got {text!r}"
    bare = text.removeprefix(_SCHEME).rstrip("/")
    if "/" in bare and not bare.startswith("unix:"):
        raise AdminError(expected)
    try:
        return parse_address(bare)
    except ValueError as error:
        raise AdminError(expected) from error


def _reasons(answer: Any, status: int) -> str:
    """The lines of an `Error`, or of a `NotDone`."""
    if not isinstance(answer, dict) or not isinstance(answer.get("error"), str):
        return f"HTTP {status}"
    problems = answer.get("problems")
    return "\n  ".join([answer["error"], *map(str, problems if isinstance(problems, list) else ())])


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of to a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def find_token(path: str | None, env: Mapping[str, str]) -> str:
    """The token for the admin API: from a file, or else from the environment; empty without.

    There is no option for the token itself: everybody on a machine sees the arguments of all
    processes.

    Raises:
        AdminError: the file cannot be read, or what is there is no token.
    """
    if path is None:
        source, token = TOKEN_VARIABLE, env.get(TOKEN_VARIABLE, "").strip()
    else:
        source, token = f"--token-file {path}", _first_line(path)
    if not (token.isascii() and token.isprintable()) or (path is not None and not token):
        raise AdminError(f"{source}: expected a token, one line of visible ASCII")
    return token


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline(_LONGEST_TOKEN).strip()
    except OSError as error:
        raise AdminError(f"--token-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AdminError(f"--token-file {path}: it is not UTF-8 text") from error
