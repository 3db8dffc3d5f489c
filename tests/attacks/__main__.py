"""Plays attacks for some minutes, and says what they broke; the last line is a summary in JSON."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks.cases import DOCKER, DRIVER, NAMESPACE, PLACES, Broken, Case, Family, batches, case_of
from tests.attacks.driver import Driver
from tests.attacks.families import FAMILIES
from tests.sandbox import dockerd

_TOLD_S = 30.0  # between two lines of progress
_MUCH_S = 1e6
_WEIGHTS = {NAMESPACE: 1, DOCKER: 1, DRIVER: 3}
"""A second in the driver plays hundreds of cases, a second in sandboxes one: these have more of them."""


@dataclass
class Lane:
    """A family in one place, and the seconds that it has had."""

    family: Family
    place: str
    batches: Iterator[list[Case]]
    spent: float = 0.0


@dataclass
class Played:
    """What was played, and what it broke."""

    seed: int
    missing: dict[str, str]
    counts: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    broken: list[Broken] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(sum(of_place.values()) for of_place in self.counts.values())

    def add(self, cases: Sequence[Case], broken: Iterable[Broken]) -> None:
        """A batch; says what it broke, and how to play it again."""
        for case in cases:
            self.counts[case.place][case.family] += 1
        for each in broken:
            self.broken.append(each)
            again = " ".join(f"--case '{id}'" for id in each.cases)
            print(f"BROKEN {', '.join(each.cases)}\n    {each.what}", flush=True)
            print(f'    again: make attacks ARGS="--seed {self.seed} {again}"', flush=True)

    def summary(self, seconds: float) -> str:
        """One line of JSON."""
        told = {"seed": self.seed, "seconds": round(seconds), "cases": self.cases, "played": self.counts}
        ids = sorted({id for each in self.broken for id in each.cases})
        return json.dumps({**told, "missing": self.missing, "broken": ids})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    more = "; may be given again"
    parser.add_argument("--minutes", type=float, default=10.0, help="after which no batch begins (10)")
    parser.add_argument("--seed", type=int, help="of what is drawn; default: drawn, in CI the commit's")
    parser.add_argument("--drivers", type=int, default=2, help="processes that are attacked at a time (2)")
    parser.add_argument("--place", action="append", choices=PLACES, help=f"only there{more}")
    parser.add_argument("--family", action="append", choices=[*FAMILIES], help=f"only this{more}")
    parser.add_argument("--case", action="append", default=[], help=f"only this one, whatever the minutes{more}")
    parser.add_argument("--list", action="store_true", help="print the families with their listed cases")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else chosen_seed()
    chosen = [case_of(id, seed) for id in given.case]
    families = [FAMILIES[name] for name in given.family or FAMILIES]
    places = dict.fromkeys([case.place for case in chosen] or given.place or PLACES)
    if given.list:
        for family in families:
            print(f"{family.name} ({', '.join(family.places)}): {', '.join(family.listed())}")
        return 0
    missing = {DOCKER: dockerd.why_not()} if DOCKER in places and not dockerd.usable() and dockerd.why_not() else {}
    began, done = time.monotonic(), Played(seed, missing)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attacks-", ignore_cleanup_errors=True)))
        folder.chmod(0o755)
        if DOCKER in places and not missing:
            os.environ["DOCKER_HOST"] = stack.enter_context(dockerd.engine(folder))
        drivers = [stack.enter_context(Driver(folder / f"{k}")) for k in range(1 if chosen else given.drivers)]
        if chosen:
            for batch in together(chosen):
                done.add(batch, drivers[0].play(batch))
        else:
            pairs = [(family, place) for family in families for place in family.places]
            play(
                [(family, place) for family, place in pairs if place in places and place not in missing],
                drivers, given.minutes, done,
            )  # fmt: skip
    print(done.summary(time.monotonic() - began))
    return int(bool(done.broken) or bool(missing and os.environ.get("CI")))


def chosen_seed() -> int:
    """One that is drawn; in CI that of the commit, so that a red run can be repeated."""
    if not os.environ.get("CI"):
        return random.SystemRandom().randrange(10**6)
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout[:5], 16)


def play(pairs: Sequence[tuple[Family, str]], drivers: Sequence[Driver], minutes: float, done: Played) -> None:
    """Each driver plays a batch of whatever had least time, family and place, until the minutes are over."""
    lanes = [Lane(family, place, batches(family, place, done.seed)) for family, place in pairs]
    random.Random(done.seed).shuffle(lanes)
    turn, began, told = threading.Lock(), time.monotonic(), [0.0]

    def drive(driver: Driver) -> None:
        while time.monotonic() < began + 60 * minutes:
            with turn:
                lane = min(lanes, key=lambda each: each.spent, default=None)
                batch = next(lane.batches, None) if lane else None
                if lane is None:
                    return
                if batch is None:
                    lanes.remove(lane)
                    continue
                lane.spent += _MUCH_S  # until it is known: nobody else takes it
            since = time.monotonic()
            broken = driver.play(batch)
            with turn:
                now = time.monotonic()
                lane.spent += (now - since) * _WEIGHTS[lane.place] - _MUCH_S
                done.add(batch, broken)
                if now - began > told[0] + _TOLD_S:
                    told[0] = now - began
                    print(
                        f"{told[0]:.0f} of {60 * minutes:g} s: {done.cases} cases, {len(done.broken)} broken",
                        flush=True,
                    )

    with ThreadPoolExecutor(len(drivers)) as pool:
        for driving in [pool.submit(drive, driver) for driver in drivers]:
            driving.result()


def together(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Those of one family in one place are a batch."""
    lanes: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        lanes[case.place, case.family].append(case)
    yield from lanes.values()


if __name__ == "__main__":
    sys.exit(main())
