"""The source against an API server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from lb.discovery.kubernetes import KubernetesSource
from lb.discovery.kubernetes_login import Login
from lb.discovery.source import Entries, SourceError
from lb.net.file_thread import FileThread
from lb.settings.kubernetes import KubernetesSettings
from tests.fakes.kubernetes import KubernetesApi, endpoint, kubernetes_api, leaving, until

PORTS = {"http_port": "http", "grpc_port": "grpc", "metrics_port": "metrics"}


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api() as running:
        yield running


class Bench:
    """A source that asks again soon."""

    def __init__(
        self, api: KubernetesApi, timeout_s: float = 30.0, most: int = 5000, **settings: Any
    ) -> None:
        config = {"service": "triton", **PORTS, **settings}
        if config.get("selector"):
            del config["service"]
        self.settings = KubernetesSettings.model_validate(config)
        self.login = api.login
        self.source = KubernetesSource(
            self.settings,
            Random(1),
            FileThread(),
            most=most,
            log_in=self._log_in,
            first_pause_s=0.01,
            timeout_s=timeout_s,
        )

    def _log_in(self) -> Login:
        return self.login

    async def next(self) -> Entries:
        async with asyncio.timeout(30):
            return await self.source.next()

    async def names(self) -> list[str]:
        return [entry.spec().name for entry in await self.next()]

    async def fails(self, match: str) -> None:
        with pytest.raises(SourceError, match=match):
            await self.next()


@pytest.fixture
async def bench(api: KubernetesApi) -> Bench:
    return Bench(api)


async def close(bench: Bench) -> None:
    """As the owner of a source does."""
    task = asyncio.ensure_future(bench.source.next())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_endpoints_of_the_service_are_backends(api: KubernetesApi, bench: Bench) -> None:
    api.put("triton-x", [endpoint("10.0.0.2", "triton-1"), endpoint("10.0.0.1", "triton-0")])
    api.put("other-x", [endpoint("10.0.0.9", "other-0")], service="other")
    api.put("triton-x", [endpoint("10.0.0.8", "triton-0")], namespace="elsewhere")
    first, second = await bench.next()
    assert (first.name, str(first.http)) == ("triton-0.serving:8000", "10.0.0.1:8000")
    assert (str(first.grpc), str(first.metrics)) == ("10.0.0.1:8001", "10.0.0.1:8002")
    assert second.name == "triton-1.serving:8000"


async def test_changes_are_told_as_they_come(api: KubernetesApi, bench: Bench) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    assert await bench.names() == ["p1.serving:8000"]
    api.put("b", [endpoint("10.0.0.2", "p2")])
    assert await bench.names() == ["p1.serving:8000", "p2.serving:8000"]
    api.put("a", [])
    assert await bench.names() == ["p2.serving:8000"]
    api.put("a", [endpoint("10.0.0.1", "p1")])
    assert await bench.names() == ["p1.serving:8000", "p2.serving:8000"]
    api.remove("b")
    assert await bench.names() == ["p1.serving:8000"]
    assert (api.lists, api.watches) == (1, 1)
    await close(bench)
    await until(lambda: not api.open)


async def test_who_terminates_or_is_not_ready_is_out(api: KubernetesApi, bench: Bench) -> None:
    stays = endpoint("10.0.0.1", "p1")
    api.put("a", [stays, endpoint("10.0.0.2", "p2"), endpoint("10.0.0.3", "p3", ready=False)])
    assert await bench.names() == ["p1.serving:8000", "p2.serving:8000"]
    api.put("a", [stays, leaving("10.0.0.2", "p2"), endpoint("10.0.0.3", "p3")])
    assert await bench.names() == ["p1.serving:8000", "p3.serving:8000"]


async def test_a_service_without_pods_has_no_backends(api: KubernetesApi, bench: Bench) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    assert len(await bench.next()) == 1
    api.put("a", [leaving("10.0.0.1", "p1")])
    # While it still serves it is better than nothing.
    assert await bench.names() == ["p1.serving:8000"]
    api.put("a", [])
    assert await bench.next() == ()


async def test_without_any_slice_nothing_is_known(api: KubernetesApi, bench: Bench) -> None:
    words = "no EndpointSlice in the namespace serving with kubernetes.io/service-name=triton"
    await bench.fails(words)
    api.put("a", [endpoint("10.0.0.1", "p1")])
    assert await bench.names() == ["p1.serving:8000"]
    api.remove("a")
    await bench.fails(words)
    assert (api.lists, api.watches) == (1, 1)


async def test_ports_that_nobody_has_are_told(api: KubernetesApi) -> None:
    bench = Bench(api, http_port="web", grpc_port=None)
    api.put("a", [endpoint("10.0.0.1", "p1")])
    await bench.fails(r"no endpoint has the ports that are configured \(web\)")
    api.put("a", [endpoint("10.0.0.1", "p1")], numbers={"web": 80})
    assert await bench.names() == ["p1.serving:80"]


async def test_a_selector_finds_pods_of_several_services_once(api: KubernetesApi) -> None:
    bench = Bench(api, selector="app=triton")
    pod = endpoint("10.0.0.1", "p1")
    labels = {"app": "triton"}
    api.put("a", [pod], service="web", numbers={"http": 8000}, labels=labels)
    api.put("b", [pod], service="rpc", numbers={"grpc": 8001}, labels=labels)
    api.put("c", [endpoint("10.0.0.2", "p2")])
    (entry,) = await bench.next()
    assert (str(entry.http), str(entry.grpc)) == ("10.0.0.1:8000", "10.0.0.1:8001")
    # By other labels it leaves the watch, which tells that as a removal.
    api.put("c", [endpoint("10.0.0.2", "p2")], labels=labels)
    assert len(await bench.next()) == 2
    api.put("c", [endpoint("10.0.0.2", "p2")])
    assert len(await bench.next()) == 1


async def test_what_all_have_in_common_is_what_was_configured(api: KubernetesApi) -> None:
    common = {"weight": 3, "kind": "kserve", "tls": {"ca": "f"}}
    api.put("a", [endpoint("10.0.0.1", "p1"), endpoint("10.0.0.2")])
    named, plain = sorted(await Bench(api, backend=common).next(), key=lambda each: not each.name)
    assert (named.weight, named.kind.value) == (3.0, "kserve")
    assert named.tls is not None
    assert named.tls.server_name == "triton.serving.svc"
    assert plain.known_as == "10.0.0.2:8000"


async def test_who_stays_is_the_same_object(api: KubernetesApi, bench: Bench) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    (before,) = await bench.next()
    api.put("b", [endpoint("10.0.0.2", "p2")])
    assert (await bench.next())[0] is before


async def test_a_watch_that_breaks_off_goes_on_where_it_was(
    api: KubernetesApi, bench: Bench
) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    await bench.next()
    waiting = asyncio.ensure_future(bench.next())
    for number in range(3):
        await until(lambda number=number: api.open and api.watches == number + 1)
        api.cut()
    await until(lambda: api.open and api.watches == 4)
    api.put("b", [endpoint("10.0.0.2", "p2")])
    assert len(await waiting) == 2
    assert api.lists == 1


async def test_what_changes_between_two_watches_is_not_missed(
    api: KubernetesApi, bench: Bench
) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    await bench.next()
    waiting = asyncio.ensure_future(bench.next())
    await until(lambda: api.open)
    api.cut()
    api.put("a", [endpoint("10.0.0.2", "p2")])
    entries = await waiting
    assert [each.name for each in entries] == ["p2.serving:8000"]
    assert api.lists == 1


async def test_a_watch_goes_on_from_the_last_bookmark(api: KubernetesApi, bench: Bench) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    await bench.next()
    waiting = asyncio.ensure_future(bench.next())
    await until(lambda: api.open)
    api.skip(500)
    api.bookmark()
    await until(lambda: bench.source._version == str(api.version))
    api.forget()
    api.cut()
    await until(lambda: api.watches == 2 and api.open)
    assert api.asked[-1]["resourceVersion"] == str(api.version)
    assert api.asked[-1]["allowWatchBookmarks"] == "true"
    assert not waiting.done()
    assert api.lists == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("as_event", [True, False])
async def test_everything_is_listed_anew_when_the_version_is_gone(
    api: KubernetesApi, bench: Bench, as_event: bool
) -> None:
    api.gone_as_event = as_event
    api.put("a", [endpoint("10.0.0.1", "p1")])
    api.put("b", [endpoint("10.0.0.2", "p2")])
    assert len(await bench.next()) == 2
    waiting = asyncio.ensure_future(bench.next())
    await until(lambda: api.open)
    await api.stop()
    api.remove("a")
    api.put("c", [endpoint("10.0.0.3", "p3")])
    api.forget()
    await api.start()
    found: list[str] = []
    while found != ["p2.serving:8000", "p3.serving:8000"]:
        try:
            found = [each.spec().name for each in await waiting]
        except SourceError:
            waiting = asyncio.ensure_future(bench.next())
    assert api.lists == 2
    api.put("c", [])
    assert await bench.names() == ["p2.serving:8000"]


async def test_an_outage_is_told_once_it_cannot_be_asked_and_its_end_too(
    api: KubernetesApi, bench: Bench
) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    before = await bench.next()
    waiting = asyncio.ensure_future(bench.next())
    await until(lambda: api.open)
    await api.stop()
    with pytest.raises(SourceError, match=r"^the API cannot be reached: "):
        await waiting
    await bench.fails(r"^the API cannot be reached: ")
    await api.start()
    # Nothing has changed, which is worth saying after an outage.
    for _ in range(50):
        try:
            after = await bench.next()
            break
        except SourceError:
            continue
    assert after == before
    assert api.lists == 1


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("trouble", 500, "the API answers 500: etcd is not there"),
        ("is_forbidden", True, "the API answers 403: endpointslices is forbidden: User"),
        ("tokens", {"right"}, "the API answers 401: Unauthorized"),
    ],
)
async def test_the_reason_of_a_refusal_is_told(
    api: KubernetesApi, bench: Bench, attribute: str, value: object, words: str
) -> None:
    before = getattr(api, attribute)
    setattr(api, attribute, value)
    api.put("a", [endpoint("10.0.0.1", "p1")])
    await bench.fails(words)
    await bench.fails(words)
    setattr(api, attribute, before)
    assert await bench.names() == ["p1.serving:8000"]


async def test_a_token_that_was_replaced_is_used_at_once(api: KubernetesApi, bench: Bench) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    api.tokens = {"old"}
    bench.login = Login(api.login.url, "serving", "old")
    await bench.next()
    waiting = asyncio.ensure_future(bench.next())
    await until(lambda: api.open)
    api.tokens = {"new"}
    bench.login = Login(api.login.url, "serving", "new")
    api.cut()
    await until(lambda: api.watches == 2)
    api.put("a", [])
    assert await waiting == ()


async def test_silence_is_a_failure(api: KubernetesApi) -> None:
    bench = Bench(api, timeout_s=0.05)
    api.is_silent = True
    await bench.fails(r"^the API has not answered within 0.05s$")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "MODIFIED", "object": {"metadata": {"name": "a", "resourceVersion": "2000"}}},
        {"type": "STRANGE", "object": {"metadata": {"name": "a", "resourceVersion": "2000"}}},
        {"type": "MODIFIED"},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "\ud800"}}},
    ],
)
async def test_a_change_that_makes_no_sense_is_no_reason_to_lose_backends(
    api: KubernetesApi, bench: Bench, event: dict[str, Any]
) -> None:
    api.put("a", [endpoint("10.0.0.1", "p1")])
    before = await bench.next()
    waiting = asyncio.ensure_future(bench.next())
    await until(lambda: api.open)
    api.tell_all(event)
    with pytest.raises(SourceError, match="cannot be read"):
        await waiting
    assert await bench.next() == before
    assert api.lists == 2


async def test_five_thousand_endpoints_come_in_pages_and_change_one_by_one(
    api: KubernetesApi, bench: Bench
) -> None:
    def pods(part: int) -> list[dict[str, Any]]:
        return [
            endpoint(f"10.{part}.{number // 250}.{number % 250 + 1}", f"triton-{part}-{number:03}")
            for number in range(100)
        ]

    for part in range(50):
        api.put(f"triton-{part:02}", pods(part))
    before = await bench.next()
    assert len(before) == 5000
    assert api.lists == 3
    api.put("triton-07", pods(7)[1:])
    after = await bench.next()
    assert {each.name for each in before} - {each.name for each in after} == {
        "triton-7-000.serving:8000"
    }
    assert sum(each is other for each, other in zip(before[-1000:], after[-1000:], strict=True))


async def test_no_more_are_found_than_asked_for(api: KubernetesApi) -> None:
    api.put("a", [endpoint(f"10.0.0.{number}", f"p{number}") for number in range(1, 8)])
    assert await Bench(api, most=6).names() == [f"p{number}.serving:8000" for number in range(1, 7)]


async def test_more_endpoints_than_any_cluster_has_are_refused(
    api: KubernetesApi, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lb.discovery.kubernetes._MOST_PARTS", 20)
    api.put("a", [endpoint("10.0.0.1", "p1")])
    assert await bench.names() == ["p1.serving:8000"]
    waiting = asyncio.ensure_future(bench.next())
    await until(lambda: api.open)
    for part in range(4):  # with three ports each
        api.put(f"b{part}", [endpoint(f"10.0.1.{part}", f"q{part}")])
    with pytest.raises(SourceError, match=r"^the API tells too many endpoints$"):
        await waiting
    await bench.fails(r"^the API tells too many endpoints$")
    api.remove("b0")
    assert len(await bench.next()) == 4


async def test_a_page_that_comes_too_late_lets_the_list_begin_again(api: KubernetesApi) -> None:
    bench = Bench(api)
    for part in range(30):
        api.put(f"triton-{part:02}", [endpoint(f"10.0.0.{part + 1}", f"p{part:02}")])
    put = api.asked.append
    seen = []

    class Forgetful(list[dict[str, str]]):
        def append(self, query: dict[str, str]) -> None:
            if "continue" in query and not seen:
                seen.append(query)
                api.put("triton-00", [])
                api.forget()
            put(query)

    api.asked = Forgetful()
    assert len(await bench.next()) == 29


async def test_pauses_grow_and_differ_from_one_another(api: KubernetesApi) -> None:
    settings = Bench(api).settings
    sources = [KubernetesSource(settings, Random(seed), FileThread(), most=9) for seed in range(50)]
    assert {source.pause_s() for source in sources} == {0.0}
    for failures, longest in ((1, 0.25), (4, 2.0), (8, 30.0), (20, 30.0)):
        for source in sources:
            source._failures = failures
        pauses = [source.pause_s() for source in sources]
        assert len(set(pauses)) == 50
        assert longest * 0.5 <= min(pauses) < longest * 0.7
        assert longest * 1.3 < max(pauses) <= longest * 1.5


async def test_one_that_is_the_same_need_not_be_replaced(api: KubernetesApi) -> None:
    assert Bench(api).source.config == Bench(api).source.config
    assert Bench(api).source.config != Bench(api, http_port=80).source.config
    assert Bench(api).source.name == "kubernetes:triton:http"
