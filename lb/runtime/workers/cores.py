"""How many cores the process may use: by its affinity, and by the quota of its container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from lb.settings.model import Settings

_QUOTA_V2: Final = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1: Final = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_PERIOD_V1: Final = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def worker_count(settings: Settings) -> int:
    """How many workers the settings ask for."""
    wanted = settings.workers
    return usable_cores() if wanted == "auto" else wanted


def usable_cores(v2: Path = _QUOTA_V2, v1: Path = _QUOTA_V1, period_v1: Path = _PERIOD_V1) -> int:
    """Whole cores that the process may use, at least 1.

    Args:
        v2: file of cgroup v2 with the quota and the period, in microseconds.
        v1: file of cgroup v1 with the quota.
        period_v1: file of cgroup v1 with the period.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = v2.read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = v1.read_text(), period_v1.read_text()
        except OSError:
            return cores
    try:
        allowed = int(quota) // int(period)
    except (ValueError, ZeroDivisionError):
        return cores  # "max": there is no quota
    return max(1, min(cores, allowed)) if int(quota) > 0 else cores
