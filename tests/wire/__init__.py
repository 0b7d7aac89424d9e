"""The kit of peers that speak raw HTTP: `frames` without I/O, `http2` and `http1` on asyncio.

Tests and benchmarks share it. Nothing here comes from `lb`: frames are built and read a second
time, so that a mistake in the product's own tables shows. Tests are its home because benchmarks may
import tests, and need no more of it than `frames`.
"""
