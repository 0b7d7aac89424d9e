"""Metrics, access log and application log: what the process says about itself.

The data plane counts on plain integers (`meter`) and hands over finished requests (`record`); the
rest renders them: `collector` for Prometheus, `access_log` and `logs` as lines through one bounded
writer thread (`line_writer`). Nothing here may slow down or fail a request.
"""
