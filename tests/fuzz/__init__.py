"""Fuzzing: one target per parser, run by two drivers.

A target is a function of bytes that raises when a promise is broken: an exception that nobody
documented, a result that depends on how the input was cut, output out of proportion, another
meaning than an independent reader finds where both accept. `make fuzz` runs the targets under
atheris, guided by coverage; `make test` runs them with hypothesis, always on the same inputs.
What was found once stands in `regressions/` and is run by both.
"""
