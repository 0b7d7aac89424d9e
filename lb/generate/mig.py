"""MIG devices that are wanted: their layout, the script that makes them, and a unit that runs it.

The script is for people to read and to start; nothing here starts it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lb.generate.devices import WHOLE_GPU_SLICES, Device, GenerateError, slices_of
from lb.generate.document import HEADER
from lb.generate.files import GeneratedFile

SCRIPT: Final = "mig.sh"
UNIT: Final = "triton-mig.service"
INSTALLED: Final = "/usr/local/sbin/triton-mig"
_MEMORY_SLICES: Final = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Of a GPU's eight, by compute slices (NVIDIA, MIG User Guide: A100 and later)."""
_ALL_MEMORY_SLICES: Final = 8


@dataclass(frozen=True, slots=True)
class MigLayout:
    """The profiles that each of some GPUs is divided into, largest first, as their indexes go."""

    gpus: tuple[str, ...]
    """Their indexes."""
    profiles: tuple[str, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """What `nvidia-smi` will list, by index: UUIDs are made with the devices."""
        return tuple(
            Device(f"{gpu}:{number}", f"{gpu}:{number}", profile=profile)
            for gpu in self.gpus
            for number, profile in enumerate(self.profiles)
        )


def parse_layout(text: str, gpus: Sequence[str]) -> MigLayout:
    """Read `1g.5gb=7` or `3g.20gb=1,1g.5gb=4`, the same for each GPU.

    Raises:
        GenerateError: it is something else, or does not fit a GPU.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        profile, equals, count = part.strip().partition("=")
        if not (equals and re.fullmatch(r"[1-9]", count)) or profile in counts:
            raise GenerateError(f"--mig: expected PROFILE=COUNT, such as 1g.5gb=7, got {part!r}")
        slices_of(profile)
        counts[profile] = int(count)
    ordered = sorted(counts, key=slices_of, reverse=True)
    profiles = [profile for profile in ordered for _ in range(counts[profile])]
    slices = [slices_of(profile) for profile in profiles]
    memory = sum(_MEMORY_SLICES.get(each, math.inf) for each in slices)
    if sum(slices) > WHOLE_GPU_SLICES or memory > _ALL_MEMORY_SLICES:
        raise GenerateError(f"--mig: {text} is more than one GPU has")
    if not gpus:
        raise GenerateError("--mig: there is no GPU to divide")
    return MigLayout(tuple(gpus), tuple(profiles))


def gpus_of(devices: Sequence[Device]) -> list[str]:
    """Indexes of the GPUs behind some devices."""
    return sorted({device.index.partition(":")[0] for device in devices}, key=int)


def mig_files(layout: MigLayout) -> list[GeneratedFile]:
    """The script, and the unit that runs it at boot."""
    return [
        GeneratedFile(SCRIPT, _script(layout), is_executable=True),
        GeneratedFile(UNIT, _UNIT),
    ]


def _script(layout: MigLayout) -> str:
    text = _SCRIPT
    for place, value in (
        ("@HEADER@", HEADER),
        ("@GPUS@", " ".join(layout.gpus)),
        ("@PROFILES@", ",".join(layout.profiles)),
        ("@WANTED@", "+".join(sorted(layout.profiles))),
        ("@INSTALLED@", INSTALLED),
        ("@UNIT@", UNIT),
    ):
        text = text.replace(place, value)
    return text


_SCRIPT: Final = """\
#!/usr/bin/env bash
@HEADER@
# Divides GPUs into MIG devices. Read it before you run it, as root:
#
#   ./mig.sh            says what it would do
#   ./mig.sh --apply    does it, on GPUs that have no MIG device yet
#   ./mig.sh --replace  does it, and destroys the MIG devices that are there
#
# MIG devices do not survive a reboot. To make them at boot:
#
#   install -m 755 mig.sh @INSTALLED@
#   install -m 644 @UNIT@ /etc/systemd/system/ && systemctl enable @UNIT@
set -euo pipefail

gpus=(@GPUS@)
profiles=@PROFILES@
wanted=@WANTED@

action="${1:-}"
case "$action" in
  "" | --apply | --replace) ;;
  *)
    echo "usage: mig.sh [--apply | --replace]" >&2
    exit 2
    ;;
esac

run() {
  echo "+ $*"
  [ -z "$action" ] || "$@"
}

# The profiles that a GPU is divided into, sorted, with + between them.
division_of() {
  nvidia-smi -L | awk -v gpu="GPU $1:" '
    /^GPU / { here = index($0, gpu) == 1 }
    here && $1 == "MIG" { print $2 }' | LC_ALL=C sort | paste -sd+ -
}

ask() {
  nvidia-smi -i "$1" "$2" --format=csv,noheader
}

for gpu in "${gpus[@]}"; do
  there="$(division_of "$gpu")"
  if [ "$there" = "$wanted" ]; then
    echo "GPU $gpu is divided as wanted"
    continue
  fi
  if [ -n "$(ask "$gpu" --query-compute-apps=pid)" ]; then
    echo "GPU $gpu is in use; stop what runs on it first" >&2
    exit 1
  fi
  if [ "$(ask "$gpu" --query-gpu=mig.mode.current)" != Enabled ]; then
    run nvidia-smi -i "$gpu" -mig 1
    if [ -n "$action" ] && [ "$(ask "$gpu" --query-gpu=mig.mode.current)" != Enabled ]; then
      echo "GPU $gpu takes MIG mode after a reset: nvidia-smi --gpu-reset -i $gpu" >&2
      exit 1
    fi
  elif [ -n "$there" ]; then
    if [ "$action" = --apply ]; then
      echo "GPU $gpu is divided into $there; --replace destroys these" >&2
      exit 1
    fi
    run nvidia-smi mig -i "$gpu" -dci
    run nvidia-smi mig -i "$gpu" -dgi
  fi
  run nvidia-smi mig -i "$gpu" -cgi "$profiles" -C
done
[ -n "$action" ] || echo "nothing was changed; --apply does it"
nvidia-smi -L
"""

_UNIT: Final = f"""\
{HEADER}
# MIG devices do not survive a reboot. See {SCRIPT} for how this is installed.
[Unit]
Description=MIG devices for the Triton Inference Servers
After=nvidia-persistenced.service
Before=docker.service containerd.service kubelet.service triton.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={INSTALLED} --apply

[Install]
WantedBy=multi-user.target
"""
