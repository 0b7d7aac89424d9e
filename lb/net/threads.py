"""Work in threads of the default executor, also where the system has no further thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class NoThread(OSError):
    """No thread can be started."""


async def in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function in a thread, as `asyncio.to_thread` does.

    An executor that cannot start a thread keeps the call for one that runs. Here it is withdrawn,
    so that the caller may do something else instead.

    Raises:
        NoThread: none can be started; the function was not called, and will not be.
    """
    done: Future[_T] = Future()

    def call() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:  # for whoever awaits it
                done.set_exception(error)

    try:
        asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError as error:
        if done.cancel():
            raise NoThread(str(error)) from error
    return await asyncio.wrap_future(done)


async def computed(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function that computes something and waits for nothing: in a thread, or at once where
    none can be started."""
    try:
        return await in_thread(function, *args, **kwargs)
    except NoThread:
        return function(*args, **kwargs)
