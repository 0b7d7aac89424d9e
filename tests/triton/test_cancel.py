"""Cancellation and deadlines reach the model, and only there where Triton hears them too."""

from __future__ import annotations

import asyncio
import json
import queue
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.triton.raw_http import RawConnection, message
from tests.triton.records import Records
from tests.triton.target import WAIT_S, Target
from tests.triton.tensors import check_sum_and_difference, milliseconds, numbers, pair, repeat

LONG_MS = 30_000


def test_cancelled_grpc_call_is_cancelled_in_the_model(
    grpc_client: grpcclient.InferenceServerClient, records: Records
) -> None:
    name = records.new_id()
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    call = grpc_client.async_infer(
        "slow_cancel",
        milliseconds(grpcclient, LONG_MS),
        lambda result, error: arrived.put((result, error)),
        request_id=name,
    )
    records.wait_for(name, "started")
    call.cancel()
    records.wait_for(name, "cancelled")
    _, error = arrived.get(timeout=WAIT_S)
    assert error.status() == "StatusCode.CANCELLED"


async def test_cancelled_asyncio_call_is_cancelled_in_the_model(
    target: Target, records: Records
) -> None:
    name = records.new_id()
    async with grpcaio.InferenceServerClient(target.grpc) as client:
        asked = asyncio.ensure_future(
            client.infer("slow_cancel", milliseconds(grpcclient, LONG_MS), request_id=name)
        )
        await asyncio.to_thread(records.wait_for, name, "started")
        asked.cancel()
        await asyncio.to_thread(records.wait_for, name, "cancelled")


def test_closed_channel_cancels_its_calls_in_the_model(target: Target, records: Records) -> None:
    name = records.new_id()
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = grpcclient.InferenceServerClient(
        # A channel of its own: by default clients of one address share connections.
        target.grpc,
        channel_args=[("grpc.use_local_subchannel_pool", 1)],
    )
    client.async_infer(
        "slow_cancel",
        milliseconds(grpcclient, LONG_MS),
        lambda result, error: arrived.put((result, error)),
        request_id=name,
    )
    records.wait_for(name, "started")
    client.close()
    records.wait_for(name, "cancelled")


def test_cancelled_stream_is_cancelled_in_the_model(
    grpc_client: grpcclient.InferenceServerClient, records: Records
) -> None:
    name = records.new_id()
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc_client.start_stream(lambda result, error: arrived.put((result, error)))
    grpc_client.async_stream_infer(
        "repeat_int32", repeat(grpcclient, list(range(1000)), 30), request_id=name
    )
    result, error = arrived.get(timeout=WAIT_S)
    assert error is None
    assert result.as_numpy("OUT").item() == 0
    grpc_client.stop_stream(cancel_requests=True)
    records.wait_for(name, "cancelled")


def test_cancelled_call_leaves_other_calls_of_the_connection_alone(
    grpc_client: grpcclient.InferenceServerClient, records: Records
) -> None:
    cancelled, kept = records.new_id(), records.new_id()
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    call = grpc_client.async_infer(
        "slow_cancel",
        milliseconds(grpcclient, LONG_MS),
        lambda result, error: None,
        request_id=cancelled,
    )
    grpc_client.async_infer(
        "slow_cancel",
        milliseconds(grpcclient, 700),
        lambda result, error: arrived.put((result, error)),
        request_id=kept,
    )
    records.wait_for(cancelled, "started")
    records.wait_for(kept, "started")
    call.cancel()
    records.wait_for(cancelled, "cancelled")
    result, error = arrived.get(timeout=WAIT_S)
    assert error is None
    assert result.as_numpy("DONE").item() == 700
    records.wait_for(kept, "finished")


def test_deadline_ends_the_call_and_cancels_it_in_the_model(
    grpc_client: grpcclient.InferenceServerClient, records: Records
) -> None:
    name = records.new_id()
    with pytest.raises(InferenceServerException) as raised:
        grpc_client.infer(
            "slow_cancel",
            milliseconds(grpcclient, LONG_MS),
            request_id=name,
            client_timeout=2.0,
        )
    assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    records.wait_for(name, "cancelled")


def test_deadline_that_is_met_changes_nothing(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    result = grpc_client.infer("simple", pair(grpcclient, numbers()), client_timeout=WAIT_S)
    check_sum_and_difference(result, numbers())


def test_deadline_of_a_stream_ends_it(
    grpc_client: grpcclient.InferenceServerClient, records: Records
) -> None:
    name = records.new_id()
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc_client.start_stream(lambda result, error: arrived.put((result, error)), stream_timeout=2.0)
    grpc_client.async_stream_infer(
        "repeat_int32", repeat(grpcclient, list(range(1000)), 30), request_id=name
    )
    error = None
    while error is None:
        _, error = arrived.get(timeout=WAIT_S)
    assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
    records.wait_for(name, "cancelled")


# HTTP: Triton does not cancel a plain infer when its client goes; it does cancel a stream.


def test_infer_whose_http_client_goes_away_runs_to_its_end(
    target: Target, records: Records
) -> None:
    name = records.new_id()
    inputs = milliseconds(httpclient, 500)
    body, header_length = httpclient.InferenceServerClient.generate_request_body(
        inputs, request_id=name
    )
    with RawConnection(target.http) as connection:
        connection.send(
            message(
                "POST",
                "/v2/models/slow_cancel/infer",
                body,
                f"Inference-Header-Content-Length: {header_length}",
            )
        )
        records.wait_for(name, "started")
    records.wait_for(name, "finished")


def test_generate_stream_whose_client_goes_away_is_cancelled_in_the_model(
    target: Target, records: Records
) -> None:
    name = records.new_id()
    asked = {"id": name, "IN": list(range(1000)), "DELAY": [30] * 1000}
    with RawConnection(target.http) as connection:
        connection.send(
            message("POST", "/v2/models/repeat_int32/generate_stream", json.dumps(asked).encode())
        )
        assert connection.read_head().status == 200
        assert connection.read_chunk().startswith(b"data: ")
    records.wait_for(name, "cancelled")
