"""One target under atheris, in a process of its own, because libFuzzer ends the process it is in.

python -m tests.fuzz.coverage TARGET CORPUS [options of libFuzzer]
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from random import Random

import atheris

from tests.fuzz.regressions import regressions


def main(name: str, corpus: Path, options: list[str]) -> None:
    """Run until libFuzzer has enough; it exits by itself."""
    with atheris.instrument_imports(include=["lb"]):
        targets = importlib.import_module("tests.fuzz.targets")
    # Not before the import above: it would load what is to be measured.
    mutation = importlib.import_module("tests.fuzz.mutation")
    target = targets.TARGETS[name]
    for number, seed in enumerate((*target.seeds, *regressions(name))):
        (corpus / f"seed-{number:04}").write_bytes(seed)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        chance = Random(seed)
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.5:
                data = mutation.changed(data, mutation.random_change(target, chance))[:size]
            else:
                data = atheris.Mutate(data, size)
        return data

    atheris.Setup([sys.argv[0], *options, str(corpus)], target.check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
