"""What the optional compiler of the hot modules is told in their source; nothing when they run as
they are (docs/decisions/0021-compiling.md)."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
    from mypy_extensions import trait as trait
else:
    T = TypeVar("T")

    def mypyc_attr(**_facts: object) -> Callable[[type[T]], type[T]]:
        """Leave a class as it is."""
        return lambda cls: cls

    def trait(cls: type[T]) -> type[T]:
        """Leave a class as it is. Compiled, it is an interface that others inherit beside a base:
        calls through it take a table. Calls and attributes of a Protocol are looked up by name."""
        return cls


def specialise(owner: type, *names: str) -> None:
    """Give a class copies of its own of methods that it inherits.

    CPython remembers within a function how it found an attribute, for one class: where a method of
    two classes runs in turn for both, each look-up is done anew. Compiled methods have no need.
    """
    for name in names:
        method = getattr(owner, name)
        if isinstance(method, FunctionType):
            own = FunctionType(
                method.__code__.replace(),
                method.__globals__,
                name,
                method.__defaults__,
                method.__closure__,
            )
            own.__kwdefaults__ = method.__kwdefaults__
            own.__doc__ = method.__doc__
            own.__qualname__ = method.__qualname__
            own.__annotations__ = method.__annotations__
            setattr(owner, name, own)
