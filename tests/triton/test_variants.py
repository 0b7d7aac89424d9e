"""NVIDIA's clients ask for a name that variants serve; they see that name, and no more of it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.fakes.process import free_ports
from tests.triton.balancer import RunningBalancer
from tests.triton.explicit import ask
from tests.triton.flows.kit import Kit
from tests.triton.records import Records
from tests.triton.server import MODELS, RealTriton
from tests.triton.target import Target
from tests.triton.tensors import (
    check_sum_and_difference,
    large,
    numbers,
    pair,
    repeat,
    tensor,
)
from tests.triton.test_perf_analyzer import GRPC, HTTP, STREAMING, measure
from tests.triton.test_stream import Stream, is_final

COPIES = {
    "simple": ("simple_v2", "simple_v3", "simple_bad"),
    "accumulator": ("accumulator_v2", "accumulator_v3"),
    "repeat_int32": ("repeat_v2", "repeat_v3"),
}
"""Further models that do the same as one of them."""
FAIL = """

def _fail(self, requests):
    raise ValueError("a bad build")


TritonPythonModel.execute = _fail
"""
"""What makes `simple_bad` of `simple`."""
MANY = 40


def halves(first: str, second: str) -> dict[str, Any]:
    """Two variants that get half of the requests each."""
    return {
        "variants": [
            {"name": "stable", "model": first, "weight": 50},
            {"name": "canary", "model": second, "weight": 50},
        ]
    }


VARIANTS = {
    "models": {
        "simple": halves("simple", "simple_ensemble"),
        "added": halves("simple_v2", "simple_v3"),
        "a": halves("accumulator_v2", "accumulator_v3"),
        "accumulator": halves("accumulator", "accumulator_v2"),
        "an_accumulator_with_a_long_name": halves("accumulator_v2", "accumulator_v3"),
        "repeat_int32": halves("repeat_int32", "repeat_v2"),
        "r": halves("repeat_v2", "repeat_v3"),
        "risky": {
            "variants": [
                {"name": "stable", "model": "simple_v2", "weight": 80},
                {"name": "canary", "model": "simple_bad", "weight": 20},
            ],
            "rollback": {"errors": "2x", "min_requests": 20},
        },
        "floats": {"variants": [{"name": "only", "model": "identity_fp32", "weight": 1}]},
    }
}
"""Names that are models, shorter names and longer ones."""


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory, records: Records) -> Iterator[Any]:
    """Three Tritons with second versions of some models."""
    workspace = tmp_path_factory.mktemp("tritons-of-variants")
    models = workspace / "models-of-variants"
    shutil.copytree(MODELS, models)
    for name, copies in COPIES.items():
        for other in copies:
            shutil.copytree(models / name, models / other)
            config = models / other / "config.pbtxt"
            config.write_text(config.read_text().replace(f'"{name}"', f'"{other}"', 1))
    with (models / "simple_bad" / "1" / "model.py").open("a") as code:
        code.write(FAIL)
    running: list[RealTriton] = []
    try:
        for number in range(3):
            made = RealTriton(f"variants-{number}", workspace, records.directory, models=models)
            running.append(made)
        for triton in running:
            triton.wait_ready()
        yield tuple(running)
    finally:
        for triton in running:
            triton.close()


@pytest.fixture(scope="module")
def sagemaker() -> int:
    """The port for SageMaker."""
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def balancer(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...], sagemaker: int
) -> Iterator[RunningBalancer]:
    """The balancer before them."""
    workspace = tmp_path_factory.mktemp("balancer-of-variants")
    front = {"enabled": True, "address": f"127.0.0.1:{sagemaker}", "default_model": "added"}
    yield from RunningBalancer.run(workspace, tritons, fronts={"sagemaker": front}, **VARIANTS)


@pytest.fixture
def target(balancer: RunningBalancer) -> Target:
    return balancer.target


@pytest.fixture(params=["http", "grpc"])
def kit(request: pytest.FixtureRequest, target: Target) -> Iterator[Kit]:
    if request.param == "http":
        with Kit(httpclient, httpclient.InferenceServerClient(target.http)) as made:
            yield made
    else:
        with Kit(grpcclient, grpcclient.InferenceServerClient(target.grpc)) as made:
            yield made


def model_of(kit: Kit, result: Any) -> str:
    answer = result.get_response()
    return str(answer["model_name"] if kit.is_http else answer.model_name)


def answered(balancer: RunningBalancer, name: str) -> dict[str, int]:
    """How many requests the variants of a name have answered."""
    listed = ask(balancer.admin, "GET", "/api/v1/variants")["models"]
    (found,) = [each for each in listed if each["model"] == name]
    assert not any(each["errors"] for each in found["variants"])
    return {each["name"]: each["answers"] for each in found["variants"]}


@pytest.mark.parametrize("name", ["simple", "added"])
def test_every_answer_counts_for_its_variant(
    balancer: RunningBalancer, kit: Kit, name: str
) -> None:
    before = answered(balancer, name)
    for seed in range(20):
        kit.client.infer(name, pair(kit.module, numbers(seed)))
    if not kit.is_http:
        stream = Stream(kit.client)
        for seed in range(20):
            stream.send(name, pair(grpcclient, numbers(seed)))
        for _ in range(20):
            stream.result()
    after = answered(balancer, name)
    counts = {each: after[each] - before[each] for each in after}
    assert sum(counts.values()) == (20 if kit.is_http else 40)
    assert min(counts.values()) >= 8


@pytest.mark.parametrize("name", ["simple", "added"])
def test_inferences_are_answered_under_the_name_that_was_asked_for(kit: Kit, name: str) -> None:
    for seed in range(MANY):
        values = numbers(seed)
        result = kit.client.infer(name, pair(kit.module, values), request_id=f"r{seed}")
        check_sum_and_difference(result, values)
        assert model_of(kit, result) == name


def test_tensors_in_json_are_answered_as_well(target: Target) -> None:
    with httpclient.InferenceServerClient(target.http) as client:
        outputs = [
            httpclient.InferRequestedOutput(each, binary_data=False)
            for each in ("OUTPUT0", "OUTPUT1")
        ]
        for seed in range(MANY):
            values = numbers(seed, batch=4)
            inputs = pair(httpclient, values, binary_data=False)
            result = client.infer("added", inputs, outputs=outputs)
            check_sum_and_difference(result, values)
            assert result.get_response()["model_name"] == "added"


PERF_ANALYZER = {
    "HTTP": ("simple", *HTTP),
    "JSON": ("simple", *HTTP, "--input-tensor-format", "json", "--output-tensor-format", "json"),
    "gRPC": ("simple", *GRPC),
    "compressed": ("simple", *GRPC, "--grpc-compression-algorithm", "gzip"),
    "stream": ("simple", *STREAMING),
    "sequences over HTTP": ("accumulator", *HTTP, "--sequence-length", "10"),
    "sequences over gRPC": ("accumulator", *GRPC, "--sequence-length", "10"),
    "sequences over streams": ("accumulator", *STREAMING, "--sequence-length", "10"),
    "HTTP, no model": ("added", *HTTP),
    "gRPC, no model": ("added", *GRPC),
}


@pytest.mark.parametrize("mode", PERF_ANALYZER.values(), ids=PERF_ANALYZER.keys())
def test_perf_analyzer_measures_a_name_with_variants(
    balancer: RunningBalancer, target: Target, mode: tuple[str, ...]
) -> None:
    before = answered(balancer, mode[0])
    measure("-m", *mode, "-u", target.http if "http" in mode else target.grpc)
    after = answered(balancer, mode[0])
    assert all(after[each] > before[each] for each in after)


def test_statistics_of_a_name_that_is_no_model_are_those_of_its_variants(kit: Kit) -> None:
    def inferences(name: str, version: str = "") -> tuple[str, int]:
        found = kit.client.get_inference_statistics(name, version)
        (entry,) = found["model_stats"] if kit.is_http else found.model_stats
        if kit.is_http:
            return entry["name"], entry["inference_count"]
        return entry.name, entry.inference_count

    models = ("simple_v2", "simple_v3")
    before = [inferences(each)[1] for each in ("added", *models)]
    for seed in range(10):
        kit.client.infer("added", pair(kit.module, numbers(seed)))
    after = [inferences(each)[1] for each in ("added", *models)]
    counts = [now - then for now, then in zip(after, before, strict=True)]
    assert counts[0] == sum(counts[1:]) == 10
    assert min(counts) >= 3
    assert after[0] == sum(after[1:])
    assert inferences("added")[0] == "added"
    with pytest.raises(InferenceServerException, match="added"):
        inferences("added", "1")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_served(kit: Kit, algorithm: str) -> None:
    if kit.is_http:
        how = {
            "request_compression_algorithm": algorithm,
            "response_compression_algorithm": algorithm,
        }
    else:
        how = {"compression_algorithm": algorithm}
    for seed in range(6):
        values = numbers(seed, batch=8)
        result = kit.client.infer("added", pair(kit.module, values), **how)
        check_sum_and_difference(result, values)
        assert model_of(kit, result) == "added"


def test_large_tensors_pass_in_both_directions(kit: Kit) -> None:
    values = large(6)
    for _ in range(3):
        result = kit.client.infer("floats", [tensor(kit.module, "INPUT0", values)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)
        assert model_of(kit, result) == "floats"


def test_large_tensors_pass_on_a_stream(target: Target) -> None:
    with grpcclient.InferenceServerClient(target.grpc) as client:
        stream = Stream(client)
        for count in (1, 3, 2):
            stream.send("floats", [tensor(grpcclient, "INPUT0", large(count))])
        for count in (1, 3, 2):
            result = stream.result()
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), large(count))
            assert result.get_response().model_name == "floats"


def test_many_clients_at_once_get_their_own_answers(target: Target) -> None:
    wrong: list[object] = []

    def ask(first: int) -> None:
        with grpcclient.InferenceServerClient(target.grpc) as client:
            for seed in range(first, first + 25):
                values = numbers(seed)
                result = client.infer("added", pair(grpcclient, values))
                try:
                    check_sum_and_difference(result, values)
                    assert result.get_response().model_name == "added"
                except AssertionError as error:
                    wrong.append(error)

    threads = [threading.Thread(target=ask, args=(1000 * each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def step(kit: Kit, name: str, sequence: int | str, value: int, **how: bool) -> Any:
    inputs = [tensor(kit.module, "VALUE", np.array([[value]], dtype=np.int32))]
    return kit.client.infer(name, inputs, sequence_id=sequence, **how)


@pytest.mark.parametrize("name", ["a", "an_accumulator_with_a_long_name"])
def test_sequences_stay_with_their_variant(kit: Kit, name: str) -> None:
    base = 70_000 if kit.is_http else 80_000
    for number in range(12):
        sequence: int | str = base + number if number % 2 else f"s-{base}-{number}"
        total = 0
        for value in range(1, 6):
            total += value
            result = step(
                kit, name, sequence, value, sequence_start=value == 1, sequence_end=value == 5
            )
            assert result.as_numpy("SUM").item() == total
            assert model_of(kit, result) == name


@pytest.mark.parametrize("name", ["simple", "added"])
def test_a_stream_is_answered_in_order_under_the_name(target: Target, name: str) -> None:
    for _ in range(4):  # each stream is drawn anew
        with grpcclient.InferenceServerClient(target.grpc) as client:
            stream = Stream(client)
            for seed in range(MANY):
                stream.send(name, pair(grpcclient, numbers(seed)), str(seed))
            for seed in range(MANY):
                result = stream.result()
                assert result.get_response().id == str(seed)
                assert result.get_response().model_name == name
                check_sum_and_difference(result, numbers(seed))


@pytest.mark.parametrize("name", ["r", "repeat_int32"])
def test_decoupled_answers_of_a_stream_come_under_the_name(target: Target, name: str) -> None:
    for _ in range(4):
        with grpcclient.InferenceServerClient(target.grpc) as client:
            stream = Stream(client)
            stream.send(name, repeat(grpcclient, [5, 6, 7], 0))
            results = [stream.result() for _ in range(4)]
            assert [each.as_numpy("OUT").item() for each in results[:3]] == [5, 6, 7]
            assert is_final(results[3])
            assert {each.get_response().model_name for each in results} == {name}


def test_sequences_of_a_stream_go_each_to_its_variant(target: Target) -> None:
    with grpcclient.InferenceServerClient(target.grpc) as client:
        stream = Stream(client)
        for value in range(1, 5):
            for number in range(10):
                inputs = [tensor(grpcclient, "VALUE", np.array([[value]], dtype=np.int32))]
                client.async_stream_infer(
                    "a",
                    inputs,
                    request_id=f"{number}",
                    sequence_id=90_000 + number,
                    sequence_start=value == 1,
                    sequence_end=value == 4,
                )
        sums: dict[str, list[int]] = {}
        for _ in range(40):
            result = stream.result()
            assert result.get_response().model_name == "a"
            sums.setdefault(result.get_response().id, []).append(result.as_numpy("SUM").item())
        assert sums == {str(number): [1, 3, 6, 10] for number in range(10)}


def test_what_is_asked_about_the_name_is_said_of_the_first_variant(kit: Kit) -> None:
    assert kit.client.is_model_ready("added")
    metadata = kit.json("get_model_metadata", "added")
    assert metadata["name"] == "added"
    assert {each["name"] for each in metadata["inputs"]} == {"INPUT0", "INPUT1"}
    config = kit.json("get_model_config", "added")
    assert (config if kit.is_http else config["config"])["name"] == "added"
    assert kit.client.is_model_ready("simple")
    assert not kit.client.is_model_ready("nothing_of_that_name")


def test_a_version_that_a_client_names_is_the_models_own(kit: Kit) -> None:
    values = numbers()
    result = kit.client.infer("simple", pair(kit.module, values), model_version="1")
    check_sum_and_difference(result, values)
    assert model_of(kit, result) == "simple"


def test_a_client_that_may_chooses_its_variant(balancer: RunningBalancer, kit: Kit) -> None:
    before = answered(balancer, "added")
    for seed in range(10):
        values = numbers(seed)
        headers = {"x-triton-lb-variant": "canary"}
        result = kit.client.infer("added", pair(kit.module, values), headers=headers)
        check_sum_and_difference(result, values)
    after = answered(balancer, "added")
    assert after["canary"] - before["canary"] == 10
    with pytest.raises(InferenceServerException, match="there are: stable, canary"):
        kit.client.infer(
            "added", pair(kit.module, numbers()), headers={"x-triton-lb-variant": "nightly"}
        )


def test_sagemaker_says_which_variant_it_wants(balancer: RunningBalancer, sagemaker: int) -> None:
    body = {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ]
    }
    before = answered(balancer, "added")
    for _ in range(10):
        fields = {"X-Amzn-SageMaker-Target-Variant": "canary"}
        url = f"http://127.0.0.1:{sagemaker}/invocations"
        with urlopen(Request(url, json.dumps(body).encode(), fields), timeout=30) as answer:
            assert json.loads(answer.read())["model_name"] == "added"
    assert answered(balancer, "added")["canary"] - before["canary"] == 10


def test_a_bad_variant_is_rolled_back_and_nobody_on_the_other_one_notices(
    balancer: RunningBalancer, target: Target
) -> None:
    def changed() -> str:
        listed = ask(balancer.admin, "GET", "/api/v1/variants")["models"]
        return next(str(each["changed"]) for each in listed if each["model"] == "risky")

    failed = 0
    give_up = time.monotonic() + 60
    with grpcclient.InferenceServerClient(target.grpc) as client:
        while changed() != "rollback":
            assert time.monotonic() < give_up
            for seed in range(20):
                values = numbers(seed)
                try:
                    result = client.infer("risky", pair(grpcclient, values))
                except InferenceServerException as error:
                    failed += "a bad build" in str(error)
                else:
                    check_sum_and_difference(result, values)
        assert failed
        for seed in range(50):
            values = numbers(seed)
            check_sum_and_difference(client.infer("risky", pair(grpcclient, values)), values)
    listed = ask(balancer.admin, "GET", "/api/v1/variants")["models"]
    found = next(each for each in listed if each["model"] == "risky")
    assert "requests failed" in found["why"]
    assert 'triton_lb_variant_rollbacks_total{model="risky",variant="canary",why="errors"} 1' in (
        balancer.metrics_text()
    )


def test_answers_over_plain_http_have_their_lengths(target: Target) -> None:
    body = {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ]
    }
    for _ in range(6):
        url = f"http://{target.http}/v2/models/added/infer"
        request = Request(url, json.dumps(body).encode(), {"Accept-Encoding": "gzip"})
        with urlopen(request, timeout=30) as answer:
            text = answer.read()
            assert int(answer.headers["Content-Length"]) == len(text)
        assert json.loads(text)["model_name"] == "added"


def test_the_models_keep_their_own_names(kit: Kit) -> None:
    values = numbers(3)
    result = kit.client.infer("simple_v2", pair(kit.module, values))
    check_sum_and_difference(result, values)
    assert model_of(kit, result) == "simple_v2"
