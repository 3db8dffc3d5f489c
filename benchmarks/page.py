"""The table of all benchmarks in docs/benchmarks.md, and the page docs/results/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import Benchmark, Result, duration

COMMANDS = {"compare": "make bench", "curve": "make curves", "measure": "by hand"}

HEAD = """\
# Benchmarks: the last run

Written by `make bench` (`python -m benchmarks --compare`): do not edit. See [benchmarks.md](../benchmarks.md).
A ratio is our value divided by the other one of the same run: of times and memory, less is better; of rates, more.
"""


@dataclass
class Outcome:
    """A run of a benchmark: its result, or why there is none.

    Attributes:
        failure: the first line says what is wrong.
    """

    name: str
    arguments: str
    seconds: float
    result: Result | None = None
    failure: str = ""

    @property
    def command(self) -> str:
        return f"python -m benchmarks.{self.name} {self.arguments}".strip()

    def failures(self, *, complete: bool = False) -> list[str]:
        """Lists the faults. `complete`: missing parts are faults, too."""
        found = [self.failure] if self.failure else []
        if self.result:
            found += self.result.problems
            found += [f"{what} cannot run: {why}" for what, why in self.result.missing.items() if complete]
        return found


def overview(benchmarks: Iterable[Benchmark]) -> list[str]:
    """A table in Markdown: what each measures, beside what, and the command that runs it among others."""
    return [
        *_table("`python -m benchmarks.`", "measures", "compared with", "run by"),
        *(_line(f"`{each.name}`", each.title, each.beside, COMMANDS[each.kind]) for each in benchmarks),
    ]


def page(outcomes: Sequence[Outcome], benchmarks: Sequence[Benchmark]) -> str:
    """The page of some runs of benchmarks that compare."""
    by_name = {each.name: each for each in benchmarks}
    first = next((each.result for each in outcomes if each.result), None)
    sections = [line for each in outcomes for line in _section(each, by_name[each.name])]
    return "\n".join([HEAD, *_place(first), *_summary(outcomes, by_name), *sections])


def _place(result: Result | None) -> list[str]:
    if result is None:
        return []
    machine = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return [
        f"- Machine: {machine.cores} cores of {machine.processor}, {machine.memory_gib:g} GiB, {machine.system}, "
        + (machine.gpu or "no GPU"),
        f"- Commit: {result.commit}",
        f"- Versions: {versions}",
        "",
    ]


def _summary(outcomes: Sequence[Outcome], benchmarks: Mapping[str, Benchmark]) -> list[str]:
    return [
        *_table("benchmark", "compared with", "minutes", "outcome"),
        *(_line(each.name, benchmarks[each.name].beside, duration(each.seconds), _ended(each)) for each in outcomes),
        "",
    ]


def _ended(outcome: Outcome) -> str:
    told = [wrong.splitlines()[0] for wrong in outcome.failures()]
    told += [f"without {what}" for what in (outcome.result.missing if outcome.result else ())]
    return "; ".join(told) or "all ran"


def _section(outcome: Outcome, benchmark: Benchmark) -> list[str]:
    result = outcome.result
    lines = [f"## {benchmark.name}: {benchmark.title[:1].lower()}{benchmark.title[1:]}", ""]
    if result is None:
        return [*lines, f"`{outcome.command}`:", "", "```text", *outcome.failure.splitlines(), "```", ""]
    before, after = result.machine.load
    lines += [f"`{result.command}`: {result.began} UTC, {duration(result.seconds)}, load {before:g} to {after:g}", ""]
    notes = [f"Not run: {what}: {why}" for what, why in result.missing.items()]
    notes += [f"Problem: {text}" for text in result.problems]
    lines += [f"- {' '.join(note.split())}" for note in notes] + [""] * bool(notes)
    lines += _table("", "ours", "", "other", "", "ratio")
    for each in result.ratios:
        values = (f"{value:.4g}" for value in (each.our_value, each.other_value))
        lines.append(_line(each.figure, each.ours, next(values), each.other, next(values), f"{each.ratio:.3g}"))
    return [*lines, ""]


def _table(*head: str) -> list[str]:
    return [_line(*head), "|" + "---|" * len(head)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"
