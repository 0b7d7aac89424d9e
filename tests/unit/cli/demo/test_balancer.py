from __future__ import annotations

import socket
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lb.cli.demo.balancer import (
    Listeners,
    configuration,
    free_listeners,
    is_accepting,
    read_backends,
    serve_command,
    usual_listeners,
)
from lb.settings.reading import read_settings
from lb.simulator.process import Ports
from tests.fakes.views import backend, backends


def no_file(path: str) -> str:
    raise OSError(path)


def test_free_listeners_are_four_different_addresses() -> None:
    listen = free_listeners()
    assert len({listen.http, listen.grpc, listen.metrics, listen.admin}) == 4


def test_where_a_usual_port_is_taken_others_are_used() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8003))
            taken.listen()
        except OSError:
            pass  # somebody else has it
        assert usual_listeners().admin != "127.0.0.1:8003"


def test_configuration_is_one_that_the_load_balancer_reads() -> None:
    listen = Listeners("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4")
    text = configuration(listen, {"a": Ports("127.0.0.1", 5, 6, 7), "b": Ports()})
    settings = read_settings(text.replace(":0", ":9"), {}, no_file)
    assert str(settings.listen.http.address) == "127.0.0.1:1"
    assert [backend.name for backend in settings.backends] == ["a", "b"]
    assert [str(settings.backends[0].http), str(settings.backends[0].grpc)] == [
        "127.0.0.1:5",
        "127.0.0.1:6",
    ]


def test_load_balancer_is_one_command_with_a_file() -> None:
    assert serve_command(Path("/f.yaml"))[1:] == (
        "-m",
        "lb.cli.main",
        "serve",
        "--config",
        "/f.yaml",
    )


async def served(path: str, status: int, answer: object) -> TestServer:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    application = web.Application()
    application.router.add_get(path, handle)
    server = TestServer(application)
    await server.start_server()
    return server


def listening(server: TestServer) -> Listeners:
    address = f"127.0.0.1:{server.port}"
    return Listeners("", "", address, address)


@pytest.mark.parametrize(("status", "accepting"), [(200, True), (503, False)])
async def test_load_balancer_accepts_once_it_says_that_it_is_ready(
    status: int, accepting: bool
) -> None:
    async with await served("/readyz", status, {}) as server, aiohttp.ClientSession() as session:
        assert await is_accepting(session, listening(server)) is accepting


async def test_load_balancer_that_does_not_listen_does_not_accept() -> None:
    async with aiohttp.ClientSession() as session:
        assert not await is_accepting(session, free_listeners())


async def test_backends_are_read_from_the_admin_api() -> None:
    answer = backends(backend("triton-0", served=7), backend("triton-1", state="down"))
    async with (
        await served("/api/v1/backends", 200, answer) as server,
        aiohttp.ClientSession() as session,
    ):
        first, second = await read_backends(session, listening(server))
        assert (first.name, first.state, first.served) == ("triton-0", "up", 7)
        assert (second.name, second.state) == ("triton-1", "down")


async def test_admin_api_that_fails_is_an_error() -> None:
    async with (
        await served("/api/v1/backends", 500, {}) as server,
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(aiohttp.ClientResponseError):
            await read_backends(session, listening(server))
