"""Plays scenes with a variant of the scheduler, or several at once, in a process of its own.

Reads `{"variants": [NAME, ...], "plays": {SCENE: [SEED, ...]}, "marks": {SCENE: MARK}}` from
standard input, and writes a line of JSON for each play. Where the first play of a scene has the
mark that is given for it, the variants change nothing there, and the other seeds are left out.
With `{"mentions": [SCENE, ...]}` it tells which names the scheduler mentions in scenes.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from benchmarks.ablate import mechanisms
from benchmarks.ablate.overrides import override
from benchmarks.ablate.reach import mentioned
from benchmarks.ablate.variants import variants


def main() -> None:
    """Play what is asked for."""
    asked = json.load(sys.stdin)
    if "mentions" in asked:
        from benchmarks.ablate.scenes import SCENES

        for name in asked["mentions"]:
            names = mentioned(partial(SCENES[name].play, 1))
            print(json.dumps({"scene": name, "mentions": sorted(names)}), flush=True)
        return
    chosen = [variants()[name] for name in asked["variants"]]
    values: dict[str, float] = {}
    texts: dict[str, dict[str, str]] = {}
    for variant in chosen:
        values |= variant.tuning
        for module, changes in variant.texts.items():
            texts.setdefault(module, {}).update(changes)
    override(values, texts)
    for variant in chosen:
        if variant.patch:
            mechanisms.PATCHES[variant.patch]()
    from benchmarks.ablate.scenes import SCENES

    for name, seeds in asked["plays"].items():
        for seed in seeds:
            figures, mark = SCENES[name].play(seed)
            line = {"scene": name, "seed": seed, "figures": figures, "mark": mark}
            print(json.dumps(line), flush=True)
            if mark == asked["marks"].get(name) and "instructions" not in figures:
                break


if __name__ == "__main__":
    main()
