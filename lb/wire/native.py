"""What the optional compiler of the hot modules is told in their source; nothing when they run as
they are (docs/decisions/0021-compiling.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    T = TypeVar("T")

    def mypyc_attr(**_facts: object) -> Callable[[type[T]], type[T]]:
        """Leave a class as it is."""
        return lambda cls: cls


def is_compiled() -> bool:
    """Whether the compiled modules are the ones that run."""
    from lb.wire.http2 import codec

    return not str(codec.__file__).endswith(".py")
