"""Control is recognised however it is spelled, and nothing else is taken for it."""

from __future__ import annotations

from random import Random
from urllib.parse import unquote_to_bytes

import pytest

from lb.kserve.control import grpc_control, http_control
from tests.fakes.work import instructions


@pytest.mark.parametrize(
    "target",
    [
        b"/v2/repository/models/m/load",
        b"/v2/repository/foo/models/m/unload",
        b"/v2/repository/models/m/load?x=1",
        b"/v2/repository/models/m/load/",
        b"//v2/repository//models/m/load",
        b"/V2/Repository/models/m/LOAD",
        b"/v2/%72epository/models/m/load",
        b"/v2/%2572epository/models/m/load",
        b"/v2%2frepository/models/m/load",
        b"/v2/repository/models/m/load%3Fx",
        b"/v2/repository/models/m/load%23x",
        b"/v2/repository;a=b/models/m/load",
        b"/v2/repository/models/m/load;a",
        b"/v2\\repository\\models\\m\\load",
        b"/v2/systemsharedmemory/region/r/register",
        b"/v2/cudasharedmemory/unregister",
        b"/v2/logging",
        b"/v2/trace/setting",
        b"/v2/models/m/trace/setting",
        b"/v2/models/m/versions/1/trace/setting",
        b"/v2/models/..;/repository/models/m/load",
        b"/v2/x/%252e%252e/repository/./models/m/load",
        b"/v1/models/m/load",
        b"/v1/models/%6d/unload",
        b"/v1/Config/reload/",
    ],
)
@pytest.mark.parametrize("method", [b"POST", b"PUT", b"post", b"ANY"])
def test_control_by_any_spelling_and_method(method: bytes, target: bytes) -> None:
    assert http_control(method, target).plain is not None


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"POST", b"/v2/models/m/infer"),
        (b"POST", b"/v2/models/load/infer"),
        (b"POST", b"/v2/models/a%20b/infer"),
        (b"POST", b"/v2/repository/index"),
        (b"POST", b"/v2/repository/foo/index"),
        (b"GET", b"/v2/models/m/config"),
        (b"GET", b"/v2/systemsharedmemory/status"),
        (b"GET", b"/v2/logging"),
        (b"GET", b"/V2/logging/"),
        (b"HEAD", b"/v2/trace/setting"),
        (b"GET", b"/v2/models/m/trace/setting"),
        (b"OPTIONS", b"*"),
        (b"POST", b"/v1/models/m:predict"),
        (b"POST", b"/v1/models/load:predict"),
        (b"POST", b"/v2/repository/models/m/load/..;/x"),
        (b"POST", b"/.."),
        (b"GET", b"/v1/models/load"),
        (b"GET", b"/v1/config"),
        (b"GET", b"/"),
    ],
)
def test_all_else_is_not_control(method: bytes, target: bytes) -> None:
    assert http_control(method, target).plain is None


def test_loading_by_get_is_control_since_nothing_is_to_be_read_there() -> None:
    assert http_control(b"GET", b"/v2/repository/models/m/load").plain is not None


def test_a_method_in_a_header_makes_reading_doubtful() -> None:
    assert http_control(b"GET", b"/v2/logging").overridden is not None
    assert http_control(b"GET", b"/v2/models/m/config").overridden is None


_SERVICE = b"/inference.GRPCInferenceService/"


@pytest.mark.parametrize(
    "path",
    [
        _SERVICE + b"RepositoryModelLoad",
        _SERVICE + b"TraceSetting",
        _SERVICE + b"LogSettings",
        _SERVICE + b"RepositoryModelLoad?x=1",
        _SERVICE + b"RepositoryModelLoad/",
        _SERVICE + b"repositorymodelload",
        _SERVICE + b"/RepositoryModelLoad",
        _SERVICE + b"Repository%4dodelLoad",
        b"/" + _SERVICE + b"RepositoryModelUnload",
        b"/inference.model_repository.ModelRepositoryService/RepositoryModelLoad",
        b"/inference.model_repository.modelrepositoryservice/RepositoryModelUnload",
    ],
)
def test_grpc_control_by_any_spelling(path: bytes) -> None:
    assert grpc_control(path) is not None


@pytest.mark.parametrize(
    "path", [_SERVICE + b"ModelInfer", _SERVICE + b"RepositoryIndex", b"/x.Y/Load", b"/", b"*"]
)
def test_other_grpc_methods_are_not_control(path: bytes) -> None:
    assert grpc_control(path) is None


def _spelled(path: bytes, random: Random) -> bytes:
    """A path with some of its characters encoded up to three times, in either case."""
    for _ in range(random.randrange(4)):
        path = b"".join([
            byte if random.random() < 0.7 else random.choice((b"%%%02x", b"%%%02X")) % ord(byte)
            for byte in (path[at : at + 1] for at in range(len(path)))
        ])  # fmt: skip
    return path


def test_what_servers_in_a_row_decode_to_control_is_control() -> None:
    random = Random(7)
    load = b"/v2/repository/models/m/load"
    for _ in range(500):
        target = _spelled(load, random)
        decoded = unquote_to_bytes(unquote_to_bytes(unquote_to_bytes(target)))
        assert decoded == load
        assert http_control(b"POST", target).plain is not None, target
        assert http_control(b"POST", target + b"?x=%25").plain is not None, target


@pytest.mark.parametrize("byte", range(256))
def test_each_escaped_byte_is_decoded_and_what_is_no_escape_stays(byte: int) -> None:
    name = b"%%%02x%%%02X" % (byte, byte)
    for odd in (b"", b"%", b"%4", b"%zz", b"\\x41", b"%5cx41"):
        path = b"/v2/repository/models/%b%b/load" % (name, odd)
        decoded = unquote_to_bytes(path)
        # Decoded a character of a path's grammar, it is another path.
        if byte not in b"/\\?#;.%" and b"\\" not in decoded:
            assert http_control(b"POST", path).plain is not None


@pytest.mark.parametrize(
    "path", [b"%25" * 9000, b"%2541" * 5000, b"a%25" * 6000, b"%" * 27_000, b"/a" * 13_000]
)
def test_a_long_path_takes_no_more_steps_than_a_short_one(path: bytes) -> None:
    short = instructions(lambda: grpc_control(b"/%41"))
    assert instructions(lambda: grpc_control(b"/" + path)) <= 2 * short


def test_a_query_is_not_looked_into() -> None:
    target = b"/v2/models/m/ready"
    with_query = target + b"?" + b"%25" * 2600
    alone = instructions(lambda: http_control(b"GET", target))
    assert instructions(lambda: http_control(b"GET", with_query)) == alone
