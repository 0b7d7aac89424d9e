"""Probes: one question to one port on a fresh connection, and what it found.

`plan` says what to ask, `http` and `grpc` are the two languages (without IO), `probe` asks.
"""
