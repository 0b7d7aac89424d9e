"""Servers that are no Tritons, behind the product as users run it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from lb.kserve import inference_pb2 as pb
from tests.fakes.mlserver import STREAMED, MlServer, mlserver
from tests.fakes.serving import Serving
from tests.fakes.tf_serving import TfServing, spec, tf_serving
from tests.wire.waiting import eventually

PREDICT = "/tensorflow.serving.PredictionService/Predict"
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
START_S = 20.0


class Clients:
    """A running product, asked over both protocols."""

    def __init__(self, folder: Path, addresses: dict[str, str]) -> None:
        self.folder = folder
        self.base = f"http://{addresses['http']}"
        self.session = aiohttp.ClientSession()
        self.channel = grpc.aio.insecure_channel(addresses["grpc"])

    async def get(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """Status and JSON of an answer."""
        async with self.session.request(method, self.base + path, json={}) as answer:
            return answer.status, await answer.json(content_type=None)

    async def call(self, path: str, message: bytes) -> bytes:
        """A unary call over bytes."""
        answer: bytes = await self.channel.unary_unary(path)(message, timeout=30)
        return answer

    @property
    def log(self) -> str:
        return (self.folder / "access.log").read_text()

    async def aclose(self) -> None:
        await self.session.close()
        await self.channel.close()


@asynccontextmanager
async def balanced(
    folder: Path, kind: str, servers: Sequence[TfServing | MlServer], **sections: Any
) -> AsyncIterator[Clients]:
    """The product before servers of one kind."""
    config = {
        "listen": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
        "backends": [
            {"name": server.name, "http": server.http, "grpc": server.grpc, "kind": kind}
            for server in servers
        ],
        "access_log": {"mode": "all", "path": str(folder / "access.log")},
        **sections,
    }
    balancer = Serving(folder, config)
    try:
        clients = Clients(folder, await asyncio.to_thread(balancer.until_serving))
        try:
            yield clients
        finally:
            await clients.aclose()
    finally:
        balancer.process.close()


@pytest.fixture
async def tensorflow() -> AsyncIterator[list[TfServing]]:
    """Two TF Servings; the second still loads its model."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(tf_serving("tf-0", half="AVAILABLE")),
            await stack.enter_async_context(tf_serving("tf-1", half="LOADING")),
        ]


HALF = {"model": "half", "interval": "100ms", "rise": 1}


async def test_tf_servings_get_requests_once_their_model_is_available(
    tensorflow: list[TfServing], tmp_path: Path
) -> None:
    async with balanced(tmp_path, "tfserving", tensorflow, health=HALF) as clients:
        for _ in range(4):
            assert await clients.get("/v1/models/half:predict", "POST") == (
                200,
                {"predictions": ["tf-0"]},
            )
            assert await clients.call(PREDICT, spec("half")) == spec("half")
        assert len(tensorflow[0].asked) == 8

        tensorflow[1].models["half"] = "AVAILABLE"
        seen = set()
        async with asyncio.timeout(START_S):
            while seen != {"tf-0", "tf-1"}:
                _, body = await clients.get("/v1/models/half/versions/1:predict", "POST")
                seen.add(body["predictions"][0])


async def test_errors_of_a_tf_serving_pass_and_its_models_are_logged(
    tensorflow: list[TfServing], tmp_path: Path
) -> None:
    async with balanced(tmp_path, "tfserving", tensorflow[:1]) as clients:
        status, body = await clients.get("/v1/models/nix:predict", "POST")
        assert (status, body) == (404, {"error": "Servable not found for request: Latest(nix)"})
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await clients.call(PREDICT, spec("nix"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        assert raised.value.details() == "Servable not found: nix"
        await clients.get("/v1/models/half/metadata")
        await eventually(lambda: clients.log.count("\n") == 3)
    lines = clients.log.splitlines()
    assert ['"Predict"' in line and '"nix"' in line for line in lines] == [True, True, False]
    assert '"GetModelMetadata"' in lines[2]


async def test_a_change_of_tf_servings_configuration_is_control(
    tensorflow: list[TfServing], tmp_path: Path
) -> None:
    access = {"control": {"loopback": False}}
    async with balanced(tmp_path, "tfserving", tensorflow[:1], access=access) as clients:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await clients.call(RELOAD, b"")
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert tensorflow[0].asked == []


async def test_a_change_of_the_configuration_reaches_all_tf_servings(
    tensorflow: list[TfServing], tmp_path: Path
) -> None:
    async with balanced(tmp_path, "tfserving", tensorflow) as clients:
        assert await clients.call(RELOAD, b"\x0a\x00") == b"\x0a\x00"
    assert [server.asked for server in tensorflow] == [["HandleReloadConfigRequest"]] * 2


@pytest.fixture
async def kserve() -> AsyncIterator[list[MlServer]]:
    """Two servers of the v2 protocol."""
    async with mlserver("ml-0") as one, mlserver("ml-1") as two:
        yield [one, two]


async def test_servers_of_kserve_are_relayed_as_they_are(
    kserve: list[MlServer], tmp_path: Path
) -> None:
    async with balanced(tmp_path, "kserve", kserve) as clients:
        assert await clients.get("/v2/health/live") == (200, {"live": True})
        assert await clients.get("/v2/health/ready") == (200, {"ready": True})
        for path, method in (
            ("/v2/models", "GET"),
            ("/v2/models/m", "GET"),
            ("/v2/models/m/stats", "GET"),
            ("/v2/repository/models/m/load", "POST"),
        ):
            status, body = await clients.get(path, method)
            assert (status, body["path"]) == (200, path)
            asked = [*kserve[0].asked, *kserve[1].asked]
            assert asked.count(path) == 1, "it was relayed to one"
        assert await clients.call("/inference.GRPCInferenceService/RepositoryIndex", b"") == b""
        async with clients.session.post(clients.base + "/v2/models/m/infer_stream") as answer:
            assert (await answer.read()).count(b"data: ") == 3


async def test_streams_of_other_servers_are_opaque(kserve: list[MlServer], tmp_path: Path) -> None:
    async with balanced(tmp_path, "kserve", kserve) as clients:
        request = pb.ModelInferRequest(model_name="m").SerializeToString()
        call = clients.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(
            iter([request, request]), timeout=30
        )
        answers = [pb.ModelInferResponse.FromString(answer) async for answer in call]
    assert answers == [STREAMED, STREAMED]


async def test_a_server_of_kserve_that_is_not_ready_gets_nothing(
    kserve: list[MlServer], tmp_path: Path
) -> None:
    kserve[0].is_ready = False
    async with balanced(tmp_path, "kserve", kserve, health={"interval": "100ms"}) as clients:
        for _ in range(4):
            _, body = await clients.get("/v2/models/m")
            assert body["server"] == "ml-1"
        kserve[1].is_ready = False
        await _until_not_ready(clients)


async def _until_not_ready(clients: Clients) -> None:
    async with asyncio.timeout(START_S):
        while (answer := await clients.get("/v2/health/ready")) == (200, {"ready": True}):
            pass
    assert answer == (400, {"ready": False})


async def test_anything_is_relayed_to_generic_servers(
    kserve: list[MlServer], tmp_path: Path
) -> None:
    async with balanced(tmp_path, "generic", kserve, health={"probe": "tcp"}) as clients:
        status, body = await clients.get("/v3/chat/completions?x=1", "POST")
        assert (status, body["path"]) == (200, "/v3/chat/completions")
