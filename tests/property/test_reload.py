"""Whatever the two configurations: after a reload the process is as if started with the second."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.runtime.logs import Logs
from lb.runtime.reload import prepare
from lb.runtime.wiring import LoadBalancer
from lb.settings.difference import changed_keys
from lb.settings.model import Settings
from tests.fakes.configured import configuration_of

SECONDS = st.sampled_from(["1s", "2500ms", "7s", "20s"])
SIZES = st.sampled_from([65536, 100_000, 1 << 20])
SWITCHES = st.booleans()


def section(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A section with some of its settings."""
    return st.fixed_dictionaries({}, optional=fields)


HEALTH = section(
    probe=st.sampled_from(["auto", "http", "tcp"]),
    interval=SECONDS,
    timeout=SECONDS,
    rise=st.integers(1, 3),
    fall=st.integers(1, 3),
)
BACKENDS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from("abcdef"),
            "http": st.sampled_from(["127.0.0.1:1", "127.0.0.1:2", "unix:/nowhere/http"]),
        },
        optional={
            "grpc": st.sampled_from(["127.0.0.1:3", "host:4"]),
            "metrics": st.just("127.0.0.1:5"),
            "kind": st.sampled_from(["triton", "kserve", "tfserving", "generic"]),
            "weight": st.integers(1, 4),
            "max_requests": st.integers(0, 9),
            "headers": st.dictionaries(st.sampled_from(["x-a", "x-b"]), st.just("v"), max_size=2),
            "shared_memory": st.sampled_from(["auto", True, False]),
            "tls": st.fixed_dictionaries({"server_name": st.sampled_from(["x", "y"])}),
            "health": HEALTH,
        },
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda entry: entry["name"],
)
TOKENS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["s", "t"]),
            "token": st.sampled_from(["0123456789abcdef", "fedcba9876543210"]),
            "roles": st.sampled_from([["infer"], ["control"], ["read"], ["infer", "operate"]]),
        }
    ),
    max_size=2,
    unique_by=(lambda entry: entry["name"], lambda entry: entry["token"]),
)
CONFIGURATIONS = st.fixed_dictionaries(
    {"listen": st.just({"http": "127.0.0.1:0"}), "backends": BACKENDS},
    optional={
        "balancing": section(
            policy=st.sampled_from(
                ["least_loaded", "least_requests", "least_latency", "round_robin"]
            )
        ),
        "scheduling": section(
            max_requests_per_backend=st.sampled_from(["auto", "off", "adaptive", 4]),
            max_queue_size=st.integers(0, 9),
            max_wait=SECONDS,
            wait_for_backend=SECONDS,
            overload_status=st.sampled_from([503, 429]),
            deadline_header=st.just("X-Timeout"),
            priority_header=st.just("X-Priority"),
            priority=st.integers(1, 3),
            priorities=st.sampled_from(["strict", "weighted"]),
            weights=st.sampled_from([[], [3, 1]]),
            reserved=st.sampled_from([0, 0.25]),
            tenants=st.sampled_from(["nothing", "token", "header"]),
            shares=st.sampled_from([{}, {"a": 2}]),
        ),
        "models": st.dictionaries(
            st.sampled_from(["m", "n"]),
            section(
                max_requests_per_backend=st.sampled_from(["off", 2]),
                max_queue_size=st.integers(0, 9),
                priority=st.integers(1, 3),
            ),
        ),
        "health": HEALTH,
        "outlier_detection": section(
            enabled=SWITCHES,
            consecutive_failures=st.integers(1, 9),
            latency_factor=st.sampled_from([0, 3]),
            base_ejection_time=SECONDS,
        ),
        "slow_start": section(window=SECONDS),
        "warm_up": section(enabled=SWITCHES, timeout=SECONDS),
        "timeouts": section(
            connect=SECONDS,
            head=SECONDS,
            body_progress=SECONDS,
            stream_stalled=SECONDS,
            client_idle=SECONDS,
            upstream_idle=SECONDS,
            request=SECONDS,
            handshake=SECONDS,
        ),
        "limits": section(
            max_connections=st.integers(0, 9),
            max_connections_per_client=st.integers(0, 9),
            head_bytes=SIZES,
            max_headers=st.integers(10, 20),
            body_bytes=SIZES,
            retained_body_bytes=SIZES,
            memory_bytes=st.sampled_from([0, 32 << 20, 64 << 20]),
            max_concurrent_streams=st.integers(1, 9),
            stream_window_bytes=SIZES,
        ),
        "forwarded": st.sampled_from(["off", "x_forwarded", "forwarded", "both"]),
        "access": section(
            tokens=TOKENS,
            header=st.sampled_from(["authorization", "x-key"]),
            open_health=SWITCHES,
            strict_shared_memory=SWITCHES,
            pass_on=SWITCHES,
            control=section(loopback=SWITCHES, networks=st.just(["10.0.0.0/8"])),
            limits=st.lists(
                section(max_concurrent_requests=st.integers(1, 3)).map(
                    lambda entry: {"by": "address", "requests_per_second": 5, **entry}
                ),
                max_size=2,
            ),
        ),
        "admin": section(hosts=st.just(["balancer"])),
        "fan_out": section(
            rolling=SWITCHES,
            deadline=SECONDS,
            read_timeout=SECONDS,
        ),
        "retry": section(attempts=st.integers(1, 5)),
        "access_log": section(mode=st.sampled_from(["off", "errors", "all"]), sample=st.just(0.5)),
        "log": section(level=st.sampled_from(["warning", "error"])),
        "metrics": section(backends=SWITCHES, model_labels=st.integers(0, 9)),
        "shutdown": section(pre_stop_delay=SECONDS, drain=SECONDS),
        "model_table": section(refresh=SECONDS, restore=SWITCHES),
        "sequences": section(
            affinity=st.sampled_from(["least_loaded", "rendezvous"]),
            max_open=st.integers(1, 9),
        ),
        "standby": section(latency=SECONDS, cooldown=SECONDS, hold=SECONDS),
    },
)


async def reloaded(first: Settings, second: Settings) -> tuple[Any, Any]:
    """What a process is like that was reloaded, and one that was started so."""
    logs = Logs(first)
    product = LoadBalancer(first, logs)
    change = prepare(product, (), second)
    closing = change.apply(product)
    change.listeners.close()
    if closing is not None:
        closing.close()
    fresh = LoadBalancer(second, logs)
    try:
        return configuration_of(product), configuration_of(fresh)
    finally:
        await product.aclose()
        await fresh.aclose()
        logs.close()


@settings(max_examples=25, deadline=None)
@given(CONFIGURATIONS, CONFIGURATIONS)
def test_a_reloaded_process_is_as_if_started_so(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    before, after = Settings.model_validate(first), Settings.model_validate(second)
    changed, fresh = asyncio.run(reloaded(before, after))
    assert changed == fresh


@given(CONFIGURATIONS, CONFIGURATIONS)
def test_what_differs_is_told_exactly_when_something_does(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    before, after = Settings.model_validate(first), Settings.model_validate(second)
    assert bool(changed_keys(before, after)) == (before != after)
    assert changed_keys(before, before) == ()
    assert set(changed_keys(before, after)) == set(changed_keys(after, before))
