"""The page of the admin port in headless Chromium, against real processes."""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from tests.fakes.browser import chromium
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.integration.test_process import Serving

READER, OPERATOR = "reader-secret-0123456789", "operator-secret-0123456789"
SOON_MS = 30_000
expect.set_options(timeout=SOON_MS)


class Pool:
    """Two simulated Tritons with ports of their own, and a balancer before them."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self._folder = folder
        self._ports = {name: free_ports(3) for name in ("gpu-0", "gpu-1")}
        self.tritons = {name: self.start(name) for name in self._ports}
        self.admin_port = free_ports(1)[0]
        self.config = {
            "listen": {
                **dict.fromkeys(("http", "grpc", "metrics"), "127.0.0.1:0"),
                "admin": f"127.0.0.1:{self.admin_port}",
            },
            "backends": [
                {"name": name, "http": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}"}
                for name, (http, grpc, _) in self._ports.items()
            ],
            **config,
        }
        self.serving = self.serve()

    def serve(self) -> Serving:
        """Start the balancer."""
        self.serving = Serving(self._folder, self.config)
        self.serving.until_serving()
        return self.serving

    def start(self, name: str) -> ChildProcess:
        """Start a Triton on its ports, and wait until it listens."""
        http, grpc, metrics = self._ports[name]
        log = self._folder / f"{name}-{len(list(self._folder.iterdir()))}.log"
        ports = (f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}")
        process = ChildProcess(
            (sys.executable, "-m", "lb.simulator", *ports), log=log, env=ENVIRONMENT
        )
        wait_until(lambda: log.read_text().endswith("\n"), timeout_s=30, what=name)
        return process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def close(self) -> None:
        for process in (self.serving.process, *self.tritons.values()):
            process.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(SOON_MS)
    yield context
    context.close()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Nobody needs a token."""
    replicas = {"replicas": ["http://lb-1.example:8003"]}
    running = Pool(tmp_path_factory.mktemp("open"), admin=replicas)
    yield running
    running.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Everybody needs a token."""
    tokens = [
        {"name": "reader", "token": READER, "roles": ["read"]},
        {"name": "operator", "token": OPERATOR, "roles": ["operate"]},
    ]
    running = Pool(tmp_path_factory.mktemp("guarded"), access={"tokens": tokens})
    yield running
    running.close()


def row(page: Page, name: str) -> Any:
    return page.locator("#backends tbody tr").filter(has_text=name)


def log_in(page: Page, token: str) -> None:
    page.fill("#token", token)
    page.click("#login button")


# What it shows

NOTE = """() => {
  window.noted = { documents: [], frames: 0, red: null };
  const count = () => { noted.frames += 1; requestAnimationFrame(count); };
  count();
  new EventSource("/api/v1/live/events").onmessage = (event) => {
    const { at, backends } = JSON.parse(event.data);
    const state = backends.find((each) => each.name === "gpu-1").state;
    noted.documents.push([at, state, noted.frames]);
  };
  const rows = document.getElementById("backends");
  new MutationObserver((changes) => {
    if (changes.some(({ target }) => target.dataset.tone === "bad")) noted.red ??= noted.frames;
  }).observe(rows, { subtree: true, attributeFilter: ["data-tone"] });
}"""
"""Notes each document, and in which frame the page has drawn a row red."""
FRAMES = 30
"""Half a second."""


def seconds_to_down(documents: list[tuple[float, str, int]], killed_at: float) -> float:
    """Seconds from a kill to the first document that shows the backend down.

    A document is due each second. What they come later is time in which the process stood still on
    a busy machine, and does not count.
    """
    late_s, before = 0.0, documents[0][0]
    for at, state, _ in documents:
        if at > killed_at:
            late_s += max(0.0, at - before - 1.1)
            if state == "down":
                return at - killed_at - late_s
        before = at
    raise AssertionError(f"never down: {documents}")


def test_a_killed_triton_turns_red_with_its_reason_and_comes_back(
    context: BrowserContext, pool: Pool
) -> None:
    page = context.new_page()
    page.goto(pool.url)
    expect(page.locator("#word")).to_have_text("good")
    expect(row(page, "gpu-0")).to_have_attribute("data-tone", "good")
    expect(page.locator("#models")).to_contain_text("simple")
    replica = page.get_by_role("link", name="lb-1.example:8003")
    expect(replica).to_have_attribute("href", "http://lb-1.example:8003")
    page.evaluate(NOTE)
    page.wait_for_function("() => noted.documents.length > 0")
    pool.tritons["gpu-1"].signal(signal.SIGKILL)
    pool.tritons["gpu-1"].wait(SOON_MS / 1000)
    killed_at = time.time()
    expect(row(page, "gpu-1")).to_have_attribute("data-tone", "bad")
    page.wait_for_function("() => noted.documents.some(([, state]) => state === 'down')")
    noted = page.evaluate("noted")
    assert seconds_to_down(noted["documents"], killed_at) < 2.0
    shown = next(frame for _, state, frame in noted["documents"] if state == "down")
    assert noted["red"] - shown < FRAMES
    expect(row(page, "gpu-1")).to_contain_text("down")
    expect(row(page, "gpu-1")).to_contain_text("refused")
    expect(page.locator("#word")).to_have_text("degraded")
    expect(page.locator("#why")).to_contain_text("gpu-1 has been down for")
    expect(page.locator("#changes li").first).to_contain_text("gpu-1")
    pool.tritons["gpu-1"].close()
    pool.tritons["gpu-1"] = pool.start("gpu-1")
    expect(row(page, "gpu-1")).to_have_attribute("data-tone", "good")
    expect(page.locator("#word")).to_have_text("good")


def test_it_says_that_the_connection_is_lost_and_finds_back(
    context: BrowserContext, pool: Pool
) -> None:
    page = context.new_page()
    page.goto(pool.url)
    expect(page.locator("#link")).to_have_attribute("data-is", "live")
    pool.serving.process.close()
    expect(page.locator("#link")).to_contain_text("connection lost")
    expect(page.get_by_role("alert").first).to_contain_text(
        "No connection to triton-lb. All below is as of"
    )
    expect(page).to_have_title("✕ no connection: triton-lb")
    pool.serving.process.log.unlink()
    pool.serve()
    expect(page.locator("#link")).to_have_attribute("data-is", "live")
    expect(page.locator("#stale")).to_be_hidden()
    expect(page).to_have_title("triton-lb: 2 of 2 up")


def test_names_are_text_and_rows_are_bounded(context: BrowserContext, pool: Pool) -> None:
    with urllib.request.urlopen(f"{pool.url}/api/v1/live") as answer:
        document = json.load(answer)
    evil = '<script>window.harmed = 1</script><img src=x onerror="window.harmed = 1">'
    backend, model = document["backends"][0], document["models"][0]
    document["backends"] = [
        backend | {"name": f"gpu-{number}{evil}", "why": evil} for number in range(200)
    ]
    document["models"] = [model | {"name": f"{number}{evil}"} for number in range(100)]
    change = document["changes"][0] | {"why": evil, "backend": evil}
    document["changes"] = [change] * 100
    document["summary"]["why"] = evil
    body = f"data: {json.dumps(document)}\n\n" * 3

    def send(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/api/v1/live/events", send)
    page.goto(pool.url)
    expect(page.locator("#backends tbody tr")).to_have_count(200)
    expect(page.locator("#why")).to_have_text(evil)
    assert page.evaluate("window.harmed") is None
    assert page.locator("#content script, #content img").count() == 0
    assert page.evaluate("document.querySelectorAll('*').length") < 12_000
    assert errors == []


def test_workers_are_shown_where_there_are_some(context: BrowserContext, pool: Pool) -> None:
    with urllib.request.urlopen(f"{pool.url}/api/v1/live") as answer:
        document = json.load(answer)
    assert document["workers"] == []
    figures = {"restarts": 0, "connections": 7, "in_flight": 3, "requests": 42.0, "cpu": 0.25}
    served = {"index": 0, "pid": 4242, "state": "serving", "since_s": 90.0} | figures
    away = {"index": 1, "pid": 0, "state": "away", "since_s": 2.0} | dict.fromkeys(figures, None)
    away |= {"restarts": 4, "connections": 0, "in_flight": 0}
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(pool.url)
    expect(page.locator("#backends tbody tr")).to_have_count(2)
    expect(page.get_by_role("region", name="Workers")).to_be_hidden()
    body = f"data: {json.dumps(document | {'workers': [served, away]})}\n\n"

    def send(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/api/v1/live/events", send)
    page.reload()
    rows = page.locator("#workers tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("worker 0process 4242●servingfor 90 s73")
    expect(rows.nth(0)).to_contain_text("25 %")
    expect(rows.nth(1)).to_have_attribute("data-tone", "bad")
    expect(rows.nth(1)).to_contain_text("away")
    assert errors == []


# Who may do what


def test_without_tokens_everybody_may_drain_and_undo_it(
    context: BrowserContext, pool: Pool
) -> None:
    page = context.new_page()
    page.goto(pool.url)
    page.get_by_role("button", name="Drain gpu-0").click()
    expect(row(page, "gpu-0")).to_contain_text("draining")
    page.get_by_role("button", name="Undo").click()
    expect(row(page, "gpu-0")).to_contain_text("up")


def test_a_backend_is_removed_and_brought_back_by_keyboard(
    context: BrowserContext, pool: Pool
) -> None:
    page = context.new_page()
    page.goto(pool.url)
    page.get_by_role("button", name="Remove gpu-0").press("Enter")
    undo = page.get_by_role("button", name="Undo")
    expect(undo).to_be_focused()
    expect(row(page, "gpu-0")).to_have_count(0)
    undo.press("Enter")
    expect(row(page, "gpu-0")).to_contain_text("up")
    drain = page.get_by_role("button", name="Drain gpu-0")
    drain.press("Enter")
    expect(row(page, "gpu-0")).to_contain_text("draining")
    expect(undo).to_be_focused()
    page.keyboard.press("Escape")
    enable = page.get_by_role("button", name="Enable gpu-0")
    expect(enable).to_be_focused()
    enable.press("Enter")
    expect(row(page, "gpu-0")).to_contain_text("up")


def test_an_operator_logs_in_drains_and_undoes(context: BrowserContext, guarded: Pool) -> None:
    page = context.new_page()
    page.goto(guarded.url)
    expect(page.locator("#backends tbody tr")).to_have_count(0)
    log_in(page, "wrong-secret-0123456789")
    expect(page.locator("#denied")).to_contain_text("no token with the role")
    log_in(page, OPERATOR)
    page.get_by_role("button", name="Drain gpu-1").click()
    expect(row(page, "gpu-1")).to_contain_text("draining")
    page.get_by_role("button", name="Undo").click()
    expect(row(page, "gpu-1")).to_contain_text("up")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    # The cookie alone changes nothing, since any page could have it sent.
    drain = f"{guarded.url}/api/v1/backends/gpu-1/drain"
    assert context.request.post(drain).status == 403
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("#login")).to_be_visible()
    assert context.request.get(f"{guarded.url}/api/v1/live").status == 401


def test_a_page_whose_session_ends_elsewhere_asks_for_the_token_again(
    context: BrowserContext, guarded: Pool
) -> None:
    page = context.new_page()
    page.goto(guarded.url)
    log_in(page, READER)
    expect(page.locator("#backends tbody tr")).to_have_count(2)
    other = context.new_page()
    other.goto(guarded.url)
    other.get_by_role("button", name="Log out").click()
    expect(page.locator("#denied")).to_have_text("The session has ended. Log in again.")
    expect(page.locator("#content")).to_be_hidden()
    log_in(page, READER)
    expect(page.locator("#content")).to_be_visible()


def test_a_reader_sees_everything_and_changes_nothing(
    context: BrowserContext, guarded: Pool
) -> None:
    page = context.new_page()
    page.goto(guarded.url)
    log_in(page, READER)
    expect(page.locator("#backends tbody tr")).to_have_count(2)
    expect(page.get_by_role("button", name="Drain gpu-0")).to_be_hidden()
    rights = context.request.get(f"{guarded.url}/api/v1/session").json()
    assert (rights["token"], rights["may_operate"]) == ("reader", False)
    refused = context.request.post(
        f"{guarded.url}/api/v1/backends/gpu-0/drain", headers={"X-CSRF-Token": rights["csrf"]}
    )
    assert refused.status == 403
