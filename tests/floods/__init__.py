"""Floods against the real process, with a good client beside them.

`python -m tests.floods` (or `make floods`) plays every flood at full size and prints a table;
`test_floods.py` plays each of them small. `stage.py` holds the processes: balancer, observing
backend, good client, attacker, each with an interpreter of its own, so that none waits for
another's lock. `catalogue.py` says what each flood is and what must happen to it.
"""
