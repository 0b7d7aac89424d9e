"""The configuration of a model as its server gives it: to be compared, and to be given to others.

Source: Triton's extension "model configuration"; a load takes the same JSON as its parameter
`config` (extension "model repository").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

_DIGEST_BYTES: Final = 8
"""Accidents only: whoever can choose configurations needs no collision."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a server says of one version of one model."""

    digest: int
    """Equal where configurations are; which GPUs a server has does not count."""
    text: str
    """The JSON that a load takes."""


def configuration_from_json(body: bytes) -> Configuration:
    """Read the answer to `GET v2/models/MODEL/config`.

    Raises:
        ValueError: it is no model configuration.
    """
    try:
        text = body.decode()
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not a model configuration: expected an object")
        if isinstance(groups := content.get("instance_group"), list):
            content["instance_group"] = [_without_gpus(group) for group in groups]
        plain = json.dumps(content, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise ValueError("not a model configuration: nested too deeply") from error
    digest = blake2b(plain.encode("ascii"), digest_size=_DIGEST_BYTES).digest()
    return Configuration(int.from_bytes(digest, "big"), text)


def _without_gpus(group: Any) -> Any:
    """A group without the GPUs: Triton fills in all that the machine has."""
    if not isinstance(group, dict):
        return group
    return {key: value for key, value in group.items() if key != "gpus"}
