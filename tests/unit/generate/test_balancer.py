"""The configuration of triton-lb for a stack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.generate.balancer import balancer_configuration, checked, told
from lb.generate.devices import GenerateError, parse_listing
from lb.generate.stack import Listen, Options, ServerKind, Stack, make_stack
from lb.settings.reading import read_settings
from tests.deploy.listings import read_listing


def stack_of(listing: str, options: Options | None = None) -> Stack:
    devices = parse_listing(read_listing(listing)).devices
    return make_stack(options or Options(), devices, 0 if devices else 1)


def read(path: str) -> str:
    raise FileNotFoundError(path)


def test_every_server_is_a_backend_at_its_ports() -> None:
    stack = stack_of("h100_mixed")
    settings = read_settings(balancer_configuration(stack), {}, read)
    assert [
        (str(each.http), str(each.grpc), str(each.metrics), each.weight)
        for each in settings.backends
    ] == [
        (
            f"127.0.0.1:{server.http}",
            f"127.0.0.1:{server.grpc}",
            f"127.0.0.1:{server.metrics}",
            server.weight,
        )
        for server in stack.servers
    ]


def test_weights_that_are_all_one_are_left_out() -> None:
    assert "weight" not in balancer_configuration(stack_of("a100_seven_slices"))


def test_tf_serving_is_asked_for_its_model() -> None:
    options = Options(server=ServerKind.TFSERVING, model="flower")
    settings = read_settings(balancer_configuration(stack_of("none", options)), {}, read)
    (backend,) = settings.backends
    assert (backend.kind.value, backend.health.model, backend.metrics) == (
        "tfserving",
        "flower",
        None,
    )


def test_what_triton_lb_would_refuse_is_not_written() -> None:
    stack = stack_of("none")
    listen = Listen(admin="0.0.0.0:8003")
    with pytest.raises(GenerateError, match=r"would refuse its configuration: listen\.admin"):
        balancer_configuration(replace(stack, options=replace(stack.options, listen=listen)))


def test_files_cannot_be_named_in_it() -> None:
    with pytest.raises(GenerateError):
        checked("listen: {http: '${file:/etc/passwd}'}\nbackends: [{http: 'a:1'}]\n")


def test_it_is_told_what_servers_run_on() -> None:
    assert told(stack_of("a100_seven_slices")) == "7 x 1g.5gb of A100-SXM4-40GB"
    assert told(stack_of("none")) == "1 x CPU"
