"""Look-ups by the real resolver at a DNS server on loopback."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import dns.message
import pytest
from dns.rcode import Rcode

from lb.discovery.dns import DnsSource
from lb.discovery.nameserver import MAX_DATAGRAM
from lb.discovery.source import Entries, SourceError
from lb.net.file_thread import FileThread
from lb.settings.discovery import DnsSettings
from tests.fakes.dns_server import DnsServer, dns_server

NAME = "triton.test."
HTTP, GRPC = "_http._tcp.triton.test.", "_grpc._tcp.triton.test."


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with dns_server() as running:
        yield running


class Bench:
    """A source with a clock that is always at the time when it may ask again."""

    def __init__(
        self, server: DnsServer, timeout_s: float = 30.0, most: int = 1000, **settings: Any
    ) -> None:
        self.now = 100.0
        config = {"servers": [server.address], **settings}
        self.source = DnsSource(
            DnsSettings.model_validate(config),
            FileThread(),
            most=most,
            clock=lambda: self.now,
            timeout_s=timeout_s,
        )

    async def next(self) -> Entries:
        self.now += 1000.0
        return await self.source.next()

    async def names(self) -> list[str]:
        return [entry.spec().name for entry in await self.next()]

    @property
    def pause_s(self) -> float:
        """How long the source waits before it asks again."""
        return self.source.due - self.now


def host(server: DnsServer, **settings: Any) -> Bench:
    return Bench(server, host=NAME, http_port=8000, **settings)


async def test_every_address_is_a_backend_in_a_lasting_order(server: DnsServer) -> None:
    bench = host(server, grpc_port=8001, metrics_port=8002)
    server.say(NAME, "A", "10.0.0.10", "10.0.0.9")
    first, second = await bench.next()
    assert (str(first.http), str(first.grpc), str(first.metrics)) == (
        "10.0.0.9:8000",
        "10.0.0.9:8001",
        "10.0.0.9:8002",
    )
    assert second.spec().name == "10.0.0.10:8000"
    server.say(NAME, "A", "10.0.0.9", "10.0.0.10", "10.0.0.11")
    assert await bench.names() == ["10.0.0.9:8000", "10.0.0.10:8000", "10.0.0.11:8000"]


@pytest.mark.parametrize(
    ("family", "found"),
    [("auto", "10.0.0.9:8000"), ("ipv4", "10.0.0.9:8000"), ("ipv6", "[fd00::1]:8000")],
)
async def test_a_server_with_both_kinds_of_addresses_counts_once(
    server: DnsServer, family: str, found: str
) -> None:
    server.say(NAME, "A", "10.0.0.9")
    server.say(NAME, "AAAA", "fd00::1")
    assert await host(server, family=family).names() == [found]


async def test_ipv6_serves_where_there_is_no_ipv4(server: DnsServer) -> None:
    server.say(NAME, "A")
    server.say(NAME, "AAAA", "fd00::1")
    assert await host(server).names() == ["[fd00::1]:8000"]


async def test_more_addresses_than_fit_a_datagram_are_all_found(server: DnsServer) -> None:
    many = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(500)]
    server.say(NAME, "A", *many)
    assert len(await host(server).next()) == 500


@pytest.mark.parametrize("keeps_to_size", [True, False])
async def test_the_event_loop_parses_short_answers_only(
    server: DnsServer, monkeypatch: pytest.MonkeyPatch, keeps_to_size: bool
) -> None:
    in_loop: list[int] = []
    here, read = threading.get_ident(), dns.message.from_wire

    def note(wire: bytes, *args: Any, **options: Any) -> dns.message.Message:
        if threading.get_ident() == here:
            in_loop.append(len(wire))
        return read(wire, *args, **options)

    for place in ("dns.message.from_wire", "lb.discovery.dns.from_wire"):
        monkeypatch.setattr(place, note)
    server.keeps_to_size = keeps_to_size
    server.say(NAME, "A", *(f"10.0.{each // 250}.{each % 250 + 1}" for each in range(3000)))
    assert len(await host(server, most=4000).next()) == 3000
    assert max(in_loop) <= MAX_DATAGRAM


async def test_of_very_many_addresses_enough_become_backends(server: DnsServer) -> None:
    server.say(NAME, "A", *(f"10.0.0.{each}" for each in range(10, 50)))
    found = await host(server, most=4).names()
    assert found == [f"10.0.0.{each}:8000" for each in range(10, 14)]


async def test_backends_that_stay_are_the_same_objects(server: DnsServer) -> None:
    bench = host(server)
    server.say(NAME, "A", "10.0.0.9")
    (before,) = await bench.next()
    server.say(NAME, "A", "10.0.0.9", "10.0.0.10")
    stays, _new = await bench.next()
    assert stays is before


async def test_what_all_have_in_common_is_what_was_configured(server: DnsServer) -> None:
    server.say(NAME, "A", "10.0.0.9")
    common = {"weight": 3, "max_requests": 7, "kind": "kserve", "health": {"fall": 9}}
    (entry,) = await host(server, backend=common).next()
    assert (entry.weight, entry.max_requests, entry.health.fall) == (3.0, 7, 9)
    assert entry.kind.value == "kserve"


async def test_certificates_must_hold_the_name_that_was_looked_up(server: DnsServer) -> None:
    server.say(NAME, "A", "10.0.0.9")
    for tls, name in (({"ca": "f"}, "triton.test"), ({"server_name": "x"}, "x")):
        (entry,) = await host(server, backend={"tls": tls}).next()
        assert entry.tls is not None
        assert entry.tls.server_name == name


@pytest.mark.parametrize(("ttl_s", "pause_s"), [(0, 2.0), (1, 2.0), (5, 5.0), (3600, 20.0)])
async def test_the_name_is_asked_for_again_when_its_time_is_over(
    server: DnsServer, ttl_s: int, pause_s: float
) -> None:
    bench = host(server, refresh_min="2s", refresh_max="20s")
    server.ttl_s = ttl_s
    server.say(NAME, "A", "10.0.0.9")
    await bench.next()
    assert bench.pause_s == pause_s


@pytest.mark.parametrize(
    ("code", "reason"),
    [(Rcode.NXDOMAIN, "does not exist"), (Rcode.SERVFAIL, "SERVFAIL"), (Rcode.REFUSED, "REFUSED")],
)
async def test_an_error_is_a_failure_and_is_tried_again_soon(
    server: DnsServer, code: Rcode, reason: str
) -> None:
    bench = host(server)
    server.fail(NAME, "A", code)
    pauses = []
    for _ in range(6):
        with pytest.raises(SourceError, match=reason):
            await bench.next()
        pauses.append(bench.pause_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    server.say(NAME, "A", "10.0.0.9")
    assert await bench.names() == ["10.0.0.9:8000"]
    server.fail(NAME, "A", code)
    with pytest.raises(SourceError):
        await bench.next()
    assert bench.pause_s == 1.0


async def test_an_answer_without_addresses_is_a_failure(server: DnsServer) -> None:
    server.say(NAME, "A")
    server.say(NAME, "AAAA")
    with pytest.raises(SourceError, match="does not contain an answer"):
        await host(server).next()


async def test_silence_is_a_failure_with_the_same_words_every_time(server: DnsServer) -> None:
    server.keep_silent(NAME, "A")
    with pytest.raises(SourceError, match=r"^no DNS server has answered in time$"):
        await host(server, timeout_s=0.05).next()


# SRV records


def services(server: DnsServer, **settings: Any) -> Bench:
    return Bench(server, http_service=HTTP, grpc_service=GRPC, **settings)


async def test_ports_of_one_target_belong_to_one_backend(server: DnsServer) -> None:
    server.say(HTTP, "SRV", "0 0 8000 b.test.", "0 0 8000 a.test.")
    server.say(GRPC, "SRV", "0 0 8001 a.test.", "0 0 8001 b.test.", "0 0 9001 c.test.")
    found = [(str(each.http), str(each.grpc)) for each in await services(server).next()]
    assert found == [
        ("a.test:8000", "a.test:8001"),
        ("b.test:8000", "b.test:8001"),
        ("None", "c.test:9001"),
    ]


async def test_several_servers_on_one_host_are_several_backends(server: DnsServer) -> None:
    server.say(HTTP, "SRV", "0 0 8010 a.test.", "0 0 8000 a.test.")
    server.say(GRPC, "SRV", "0 0 8001 a.test.", "0 0 8011 a.test.")
    found = [(str(each.http), str(each.grpc)) for each in await services(server).next()]
    assert found == [("a.test:8000", "a.test:8001"), ("a.test:8010", "a.test:8011")]


async def test_only_targets_of_the_lowest_priority_are_used(server: DnsServer) -> None:
    server.say(HTTP, "SRV", "10 0 8000 a.test.", "20 0 8000 b.test.")
    assert await Bench(server, http_service=HTTP).names() == ["a.test:8000"]


@pytest.mark.parametrize(
    ("weights", "found"), [((5, 5), [2.0, 2.0]), ((0, 0), [2.0, 2.0]), ((10, 0), [20.0, 2.0])]
)
async def test_weights_count_where_they_differ(
    server: DnsServer, weights: tuple[int, int], found: list[float]
) -> None:
    first, second = weights
    server.say(HTTP, "SRV", f"0 {first} 8000 a.test.", f"0 {second} 8000 b.test.")
    bench = Bench(server, http_service=HTTP, backend={"weight": 2})
    assert [entry.weight for entry in await bench.next()] == found


async def test_certificates_of_targets_must_hold_their_names(server: DnsServer) -> None:
    server.say(HTTP, "SRV", "0 0 8000 a.test.")
    (entry,) = await Bench(server, http_service=HTTP, backend={"tls": {"ca": "f"}}).next()
    assert entry.tls is not None
    assert entry.tls.server_name is None, "so it is the host of the address"


async def test_a_metrics_port_alone_is_no_backend(server: DnsServer) -> None:
    server.say(HTTP, "SRV", "0 0 8000 a.test.")
    server.say("_m._tcp.test.", "SRV", "0 0 8002 a.test.", "0 0 8012 a.test.", "0 0 8002 b.test.")
    bench = Bench(server, http_service=HTTP, metrics_service="_m._tcp.test.")
    found = [(str(each.http), str(each.metrics)) for each in await bench.next()]
    assert found == [("a.test:8000", "a.test:8002")]


async def test_a_service_that_says_it_is_not_there_is_a_failure(server: DnsServer) -> None:
    server.say(HTTP, "SRV", "0 0 0 .")
    bench = Bench(server, http_service=HTTP)
    with pytest.raises(SourceError, match="is not available"):
        await bench.next()
    assert bench.pause_s == 1.0


async def test_one_service_that_cannot_be_looked_up_fails_all(server: DnsServer) -> None:
    server.say(HTTP, "SRV", "0 0 8000 a.test.")
    server.fail(GRPC, "SRV")
    with pytest.raises(SourceError, match="SERVFAIL"):
        await services(server).next()


async def test_a_source_is_the_same_when_its_settings_are(server: DnsServer) -> None:
    assert host(server).source.config == host(server).source.config
    assert host(server).source.config != host(server, refresh_max="2s").source.config
    assert host(server).source.name == "dns:triton.test."
