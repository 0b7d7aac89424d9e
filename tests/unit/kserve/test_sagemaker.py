"""The front for SageMaker."""

from __future__ import annotations

import json

import pytest

from lb.kserve.fronts import UNKNOWN_ROUTE, Forward, FrontFault, FrontRequest, Own
from lb.kserve.sagemaker import (
    MIME,
    MODELS,
    Action,
    Invoke,
    LoadedModel,
    Manage,
    SageMakerRoutes,
    Shelf,
    error_status,
    front_answer_head,
    is_unloaded,
    load_status,
    read_load,
    translate,
)

ONE = SageMakerRoutes(model=b"simple")
MANY = SageMakerRoutes(model=b"simple", is_multi_model=True)


def ask(
    method: bytes,
    path: bytes,
    routes: SageMakerRoutes = MANY,
    content_type: bytes = b"",
    model: bytes = b"",
) -> Forward | Own | Manage | Invoke:
    return translate(routes, FrontRequest(method, path, 50, content_type, model))


def test_a_ping_asks_for_readiness_or_liveness() -> None:
    live = SageMakerRoutes(ping=b"live")

    assert ask(b"GET", b"/ping") == Forward(b"GET", b"/v2/health/ready")
    assert ask(b"GET", b"/ping", live) == Forward(b"GET", b"/v2/health/live")


def test_invocations_are_of_the_default_model() -> None:
    infer = b"/v2/models/simple/infer"

    assert ask(b"POST", b"/invocations", ONE) == Forward(b"POST", infer)
    assert ask(b"POST", b"/invocations", ONE, MIME + b"7") == Forward(b"POST", infer, 7)
    assert ask(b"GET", b"/invocations", ONE, MIME + b"99") == Forward(b"GET", infer)
    with pytest.raises(FrontFault):
        ask(b"POST", b"/invocations", ONE, MIME + b"51")


@pytest.mark.parametrize("inference", [b"generate", b"generate_stream"])
def test_invocations_may_generate(inference: bytes) -> None:
    routes = SageMakerRoutes(model=b"llm", inference=inference)

    target = b"/v2/models/llm/" + inference
    assert ask(b"POST", b"/invocations", routes, MIME + b"99") == Forward(b"POST", target)


def test_without_a_default_model_the_backend_does_not_find_it() -> None:
    assert ask(b"POST", b"/invocations", SageMakerRoutes()) == Forward(
        b"POST", b"/v2/models/unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME/infer"
    )


@pytest.mark.parametrize(
    ("method", "path", "meaning"),
    [
        (b"GET", b"/models", Manage(Action.LIST)),
        (b"GET", b"/models/", Manage(Action.LIST)),
        (b"GET", b"/models/H", Manage(Action.DESCRIBE, b"H")),
        (b"POST", b"/models", Manage(Action.LOAD)),
        (b"DELETE", b"/models/H", Manage(Action.UNLOAD, b"H")),
        (b"DELETE", b"/models", Own(404)),
        (b"PUT", b"/models/H", UNKNOWN_ROUTE),
        (b"GET", b"/models/a/b/c", UNKNOWN_ROUTE),
        (b"GET", b"/v2/health/ready", UNKNOWN_ROUTE),
        (b"GET", b"/ping/", UNKNOWN_ROUTE),
    ],
)
def test_the_routes_for_many_models(method: bytes, path: bytes, meaning: Own | Manage) -> None:
    assert ask(method, path) == meaning


def test_an_endpoint_of_one_model_has_no_routes_for_many() -> None:
    assert ask(b"GET", b"/models", ONE) == UNKNOWN_ROUTE


def test_a_model_is_invoked_by_the_name_that_the_header_gives() -> None:
    assert ask(b"POST", b"/models/H/invoke", content_type=MIME + b"3", model=b"m.tar.gz") == Invoke(
        b"H", Forward(b"POST", b"/v2/models/m.tar.gz/infer", 3)
    )
    assert ask(b"POST", b"/models/H/invoke") == Invoke(
        b"H", Forward(b"POST", b"/v2/models/H/infer")
    )


@pytest.mark.parametrize("model", [b"a/b", b"..", b"a b", b"a?b", b"a%2fb", b"a\xff"])
def test_a_name_that_cannot_stand_in_a_path_is_of_no_model(model: bytes) -> None:
    assert ask(b"POST", b"/models/H/invoke", model=model) == Own(404)


def test_binary_answers_have_the_content_type_of_the_front() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: 145\r\nContent-Length: 209\r\n\r\n"
    )

    assert front_answer_head(head) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: "
        b"application/vnd.sagemaker-triton.binary+json;json-header-size=145\r\n"
        b"Content-Length: 209\r\n\r\n"
    )


def test_other_answers_stay_as_they_are() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"

    assert front_answer_head(head) is head


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"Request for unknown model", 400),
        (b"failed to parse the request JSON buffer", 400),
        (b"Failed to process: CUDA out of memory", 507),
        (b"Dst tensor is not initialized", 507),
    ],
)
def test_errors_of_one_of_many_models_are_two(text: bytes, expected: int) -> None:
    assert error_status(b'{"error":"' + text + b'"}') == expected


def test_loads_end_well_or_in_one_of_two_errors() -> None:
    assert load_status(200, b"") == 200
    assert load_status(500, b'{"error":"failed to load: OOM"}') == 507
    assert load_status(503, b'{"error":"explicit model load is not allowed"}') == 400


@pytest.mark.parametrize(
    ("states", "is_gone"),
    [
        ((), True),
        (("UNAVAILABLE",), True),
        (("UNAVAILABLE", "UNLOADING"), False),
        (("READY",), False),
    ],
)
def test_the_index_says_when_a_model_is_gone(states: tuple[str, ...], is_gone: bool) -> None:
    entries = [{"name": "m", "state": state} for state in states]
    index = json.dumps([*entries, {"name": "other", "state": "READY"}, {"name": "m"}]).encode()

    assert is_unloaded(index, b"m") is is_gone


@pytest.mark.parametrize("index", [b"", b"{}", b"[1]", b'{"error":"x"}', b"[{}]"])
def test_an_index_that_cannot_be_read_is_not_waited_for(index: bytes) -> None:
    assert is_unloaded(index, b"m")


def test_the_shelf_lists_what_is_ready_and_describes_what_is_loaded() -> None:
    shelf = Shelf()
    shelf.add(b"H1", LoadedModel(b"m1", "/opt/ml/models/H1/model"))
    shelf.add(b"H2", LoadedModel(b"m2", "/opt/ml/models/H2/model"))

    assert shelf.listing(frozenset({b"m1"})) == (
        b'{"models":[{"modelName":"H1","modelUrl":"/opt/ml/models/H1/model"}]}'
    )
    assert shelf.description(b"H2") == (b'{"modelName":"H2","modelUrl":"/opt/ml/models/H2/model"}')
    shelf.remove(b"H2")
    assert (shelf.description(b"H2"), shelf.find(b"H2")) == (None, None)


def test_the_shelf_is_bounded() -> None:
    shelf = Shelf()
    for number in range(MODELS):
        shelf.add(b"%d" % number, LoadedModel(b"m", ""))

    assert shelf.is_full


def test_a_load_names_the_model_and_where_it_is() -> None:
    body = json.dumps({"model_name": "H", "url": "/opt/ml/models/H/model"}).encode()

    assert read_load(body, b"") == (b"H", LoadedModel(b"H", "/opt/ml/models/H/model"))
    assert read_load(body, b"m.tar.gz")[1].model == b"m.tar.gz"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b'{"model_name":5}', b'{"model_name":"a/b"}', b'{"url":"/x"}'),
        b'{"model_name":"\\ud800"}',
    ],
)
def test_a_load_that_names_no_model_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"model_name|parse"):
        read_load(body, b"")


@pytest.mark.parametrize("url", ["\ud800", "/m\n", "/" + 4096 * "m"])
def test_a_load_from_nowhere_is_an_error_that_can_be_written(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        read_load(json.dumps({"model_name": "H", "url": url}).encode(), b"")


def test_whatever_is_loaded_can_be_listed() -> None:
    name, model = read_load(
        json.dumps({"model_name": "H", "url": "/m\u00e9\U0001f600"}).encode(), b""
    )
    shelf = Shelf()
    shelf.add(name, model)

    assert json.loads(shelf.description(b"H") or b"")["modelUrl"] == "/m\u00e9\U0001f600"
