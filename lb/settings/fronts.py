"""Settings of the fronts for cloud platforms, and what the platforms' environment says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, TypeAdapter, ValidationError

from lb.domain.backend import Address
from lb.settings.listening import overlap
from lb.settings.problems import Finding, Substituted, show
from lb.settings.section import Section
from lb.settings.values import Boolean, ListenAddress, UrlPath, text_schema

_SEGMENT: Final = re.compile(r"(?!\.\.?\Z)[!-~]{1,255}", re.ASCII)
_RANGE: Final = re.compile(r"[0-9]{1,5}-[0-9]{1,5}", re.ASCII)
DEFAULT_ADDRESS: Final = Address("0.0.0.0", 8080)  # the platforms come from outside


def _check_model(name: str) -> str:
    if not _SEGMENT.fullmatch(name) or set(name) & set("/\\?#%"):
        raise ValueError(f"not a name that can stand in a path: {show(name)}")
    return name


def _check_range(text: str) -> str:
    if not _RANGE.fullmatch(text):
        raise ValueError(f"expected LOW-HIGH, got {show(text)}")
    return text


ModelName = Annotated[str, AfterValidator(_check_model)]
"""Name of an ML model as it stands in a path."""
PortRange = Annotated[str, AfterValidator(_check_range), text_schema(_RANGE)]
"""Two ports, `8000-8999`."""


class Inference(StrEnum):
    """Which call of a model an invocation is."""

    INFER = "infer"
    GENERATE = "generate"
    GENERATE_STREAM = "generate_stream"


class Ping(StrEnum):
    """What a ping asks."""

    READY = "ready"
    LIVE = "live"


class SageMakerSettings(Section):
    """Amazon SageMaker: `/ping`, `/invocations` and, for multi-model endpoints, `/models`, on a
    port of its own, as a Triton with `--allow-sagemaker` has it. A key left out takes the value of
    the environment variable named with it."""

    enabled: Boolean = False
    """Whether this listener is on.

    Set this when the container runs as a SageMaker endpoint; otherwise the listener is off."""
    address: ListenAddress = DEFAULT_ADDRESS
    """Address to listen on; its port is `SAGEMAKER_BIND_TO_PORT`.

    Set this when the platform's variables are not there, in a test for example; otherwise they
    decide, or port 8080."""
    safe_port_range: PortRange | None = None
    """Ports that SageMaker permits, `LOW-HIGH`; `address` must be one of them:
    `SAGEMAKER_SAFE_PORT_RANGE`.

    Set this when a start on a forbidden port should fail; otherwise the variable decides, or no
    port is refused."""
    default_model: ModelName | None = None
    """The model of `/invocations`: `SAGEMAKER_TRITON_DEFAULT_MODEL_NAME`.

    Set this when the container cannot set the variable; otherwise invocations get 404 as from a
    Triton if it is missing."""
    inference: Inference = Inference.INFER
    """What an invocation is: `infer`, `generate` or `generate_stream`:
    `SAGEMAKER_TRITON_INFERENCE_TYPE`.

    Set this when the model generates text; otherwise the variable decides, or `infer`."""
    ping: Ping = Ping.READY
    """What `/ping` checks, `ready` or `live`: `SAGEMAKER_TRITON_PING_MODE`.

    Set this when instances are replaced because models load for too long; otherwise the variable
    decides, or `ready`."""
    multi_model: Boolean = False
    """Whether SageMaker loads and unloads models through `/models`: `SAGEMAKER_MULTI_MODEL`. It
    needs `--model-control-mode=explicit` on the backends, models in their repositories under
    SageMaker's names, a rule in `access.control` that admits it, and one worker.

    Set this when the endpoint is a multi-model one; otherwise the variable decides, or there is no
    `/models`."""

    def broken_rules(self) -> Iterator[Finding]:
        """It listens at a port that SageMaker permits."""
        if not self.enabled or self.safe_port_range is None:
            return
        low, _, high = self.safe_port_range.partition("-")
        if not int(low) <= self.address.port <= int(high):
            yield (
                ("address",),
                f"port {self.address.port} is outside of the safe_port_range "
                f"{self.safe_port_range}",
            )


class VertexSettings(Section):
    """Vertex AI: a health and a predict route on a port of its own, as a Triton has it in its
    containers. A key left out takes the value of the environment variable named with it."""

    enabled: Boolean = False
    """Whether this listener is on. If `AIP_MODE` is set to another value than PREDICTION, it is
    off.

    Set this when the container runs on Vertex AI; otherwise the listener is off."""
    address: ListenAddress = DEFAULT_ADDRESS
    """Address to listen on; its port is `AIP_HTTP_PORT`.

    Set this when the platform's variables are not there, in a test for example; otherwise they
    decide, or port 8080."""
    health_route: UrlPath | None = None
    """Path of readiness checks: `AIP_HEALTH_ROUTE`.

    Set this when the variable is not there; otherwise the variable decides, and one of both is
    required."""
    predict_route: UrlPath | None = None
    """Path of predictions: `AIP_PREDICT_ROUTE`.

    Set this when the variable is not there; otherwise the variable decides, and one of both is
    required."""
    default_model: ModelName | None = None
    """The model of predictions without another route in `X-Vertex-Ai-Triton-Redirect`.

    Set this when several models are ready; otherwise it is the only one that is ready."""

    def broken_rules(self) -> Iterator[Finding]:
        """Both routes are there."""
        for key in ("health_route", "predict_route") if self.enabled else ():
            if getattr(self, key) is None:
                yield (key,), f"must be given, here or by {_VERTEX[key]}"


class FrontSettings(Section):
    """Listeners for the hosting platforms of clouds, with the paths that they expect."""

    sagemaker: SageMakerSettings = SageMakerSettings()
    vertex: VertexSettings = VertexSettings()

    @property
    def addresses(self) -> dict[str, Address]:
        """Where those that are enabled listen, by name."""
        return {name: front.address for name, front in self if front.enabled}

    def broken_rules(self) -> Iterator[Finding]:
        """Each has an address of its own."""
        found = self.addresses
        if len(found) > 1 and overlap(found["sagemaker"], found["vertex"]):
            message = f"{found['vertex']} is already taken by fronts.sagemaker"
            yield ("vertex", "address"), message


_SAGEMAKER: Final = {
    "safe_port_range": "SAGEMAKER_SAFE_PORT_RANGE",
    "default_model": "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
    "inference": "SAGEMAKER_TRITON_INFERENCE_TYPE",
    "ping": "SAGEMAKER_TRITON_PING_MODE",
}
_BOOLEAN: Final = TypeAdapter(bool)
_VERTEX: Final = {"health_route": "AIP_HEALTH_ROUTE", "predict_route": "AIP_PREDICT_ROUTE"}


def is_enabled(section: Mapping[str, object]) -> bool:
    """Whether a front is on. What comes from a variable of the environment is text."""
    try:
        return _BOOLEAN.validate_python(section.get("enabled", False))
    except ValidationError:
        return False  # complained about elsewhere


def apply_environment(root: Mapping[str, object], env: Mapping[str, str]) -> None:
    """Fill in what the fronts that are enabled leave to the environment.

    Args:
        root: the tree of a configuration; changed in place.
        env: environment variables; an empty one is as good as none.
    """
    fronts = root.get("fronts")
    if not isinstance(fronts, dict):
        return
    sagemaker, vertex = fronts.get("sagemaker"), fronts.get("vertex")
    if isinstance(sagemaker, dict) and is_enabled(sagemaker):
        _fill(sagemaker, _SAGEMAKER, env)
        _fill_port(sagemaker, "SAGEMAKER_BIND_TO_PORT", env)
        if env.get("SAGEMAKER_MULTI_MODEL"):
            sagemaker.setdefault("multi_model", env["SAGEMAKER_MULTI_MODEL"] == "true")
    if isinstance(vertex, dict) and is_enabled(vertex):
        if (env.get("AIP_MODE") or "PREDICTION") != "PREDICTION":
            vertex["enabled"] = False
        _fill(vertex, _VERTEX, env)
        _fill_port(vertex, "AIP_HTTP_PORT", env)


def _fill(section: dict[str, object], names: Mapping[str, str], env: Mapping[str, str]) -> None:
    for key, name in names.items():
        if env.get(name):
            section.setdefault(key, Substituted.of(env[name], f"${{{name}}}"))


def _fill_port(section: dict[str, object], name: str, env: Mapping[str, str]) -> None:
    if env.get(name):
        host = DEFAULT_ADDRESS.host
        address = Substituted.of(f"{host}:{env[name]}", f"{host}:${{{name}}}")
        section.setdefault("address", address)
