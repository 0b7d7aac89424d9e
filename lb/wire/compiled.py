"""Whether the product runs with its hot modules compiled (docs/decisions/0021-compiling.md)."""

from __future__ import annotations

from lb.wire.http2 import codec


def is_compiled() -> bool:
    """Whether the compiled modules are the ones that run."""
    return not str(codec.__file__).endswith(".py")
