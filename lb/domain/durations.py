"""Durations as people read them, in the units of the configuration: `1.2ms`, `12s`, `3m05s`."""

from __future__ import annotations


def short_duration(seconds: float) -> str:
    """Write a duration with two or three digits that matter, without a space before the unit.

    `0.4ms`, `12.3ms`, `250ms`, `1.2s`, `12s`, `3m05s`, `2h07m`, `4d02h`; zero is `0s`.
    """
    milliseconds = seconds * 1000
    if milliseconds < 99.95:
        return f"{milliseconds:.1f}ms" if seconds else "0s"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole:02}s" if minutes else f"{whole}s"
