"""Processor time of each estimator: `python -m benchmarks.credit [--sizes 64 256 512 1024] [--turns 30]`.

CPU seconds of this process, the median of some repetitions, on tables that hold every column. Beside GiGPO stands a
straightforward one that compares every row with every row. `gagpo, decay 0.5` also counts the states of each batch in a
memory that knows them. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from agentrl.config.credit import CreditSettings
from agentrl.estimators.history import History
from agentrl.estimators.registry import ESTIMATORS, load_credit
from agentrl.estimators.table import OPTIONAL, CreditTable
from benchmarks.harness import Benchmark, Report, Row

BUILT_IN = ESTIMATORS.all()
ROW_BY_ROW, REMEMBERING = "gigpo, row by row", "gagpo, decay 0.5"


class Estimator(Row):
    """CPU milliseconds by number of trajectories."""

    estimator: str
    ms: dict[int, float]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Estimator,
    kind="compare",
    beside="GiGPO as one would write it first",
    smoke={"sizes": [16, 32], "turns": 3, "repeat": 1},
    runs=("--sizes 64 512",),
    minutes=1,
)

GROUP, STATES, TOKENS = 8, 12, 20
BUDGET, GIGPO_BUDGET, BUDGET_SIZE = 0.3, 0.05, 512
"""Shares of the time of the row-by-row GiGPO that an estimator, and ours of GiGPO, may take at this size."""


def make_table(trajectories: int, turns: int, seed: int = 0) -> CreditTable:
    """Groups of 8 trajectories of `turns` turns of 20 tokens, 12 states a group, and every optional column."""
    random = np.random.default_rng(seed)
    rows = trajectories * turns
    sizes = {"trajectory": trajectories, "turn": rows, "token": rows * TOKENS}
    columns = {
        name: random.integers(0, 3, sizes[unit]) if kind is np.int64 else random.random(sizes[unit])
        for name, (unit, kind) in OPTIONAL.items()
    }
    for name in columns.keys() & {"gold_logprob", "behaviour_logprob", "ref_logprob", "prm_logprob"}:
        columns[name] = -columns[name]
    table = CreditTable.from_columns(
        episode=[f"e{i}" for i in range(trajectories)],
        group=[f"g{i // GROUP}" for i in range(trajectories)],
        score=random.integers(0, 2, trajectories).astype(float),
        length=[turns] * trajectories,
        reward=random.integers(0, 3, rows) / 10,
        state=[f"s{k}" for k in random.integers(0, STATES, rows)],
        tokens=[TOKENS] * rows,
        **columns,
    )
    tokens = list(random.integers(0, 3, (trajectories, turns * TOKENS)))
    history = History(tokens, np.tile(np.arange(turns * TOKENS), trajectories))
    return dataclasses.replace(table, history=lambda: history)


def row_by_row_gigpo(table: CreditTable, gamma: float = 0.95) -> NDArray[np.float64]:
    """GiGPO as one would write it first: for every row, all rows are searched for its group and for its state."""
    group, state, owner, steps = table.turn_group, table.state, table.trajectory, table.step_reward
    togo = np.zeros(table.n_turns)
    for row in reversed(range(table.n_turns)):
        last = row + 1 == table.n_turns or owner[row + 1] != owner[row]
        togo[row] = steps[row] + (0.0 if last else gamma * togo[row + 1])
    advantages = np.zeros(table.n_turns)
    for row in range(table.n_turns):
        members = table.total_reward[table.group == group[row]]
        same = togo[(group == group[row]) & (state == state[row])]
        advantages[row] = (table.total_reward[owner[row]] - members.mean()) / (members.std(ddof=1) + 1e-6)
        if len(same) > 1:
            advantages[row] += (togo[row] - same.mean()) / (same.std(ddof=1) + 1e-6)
    return advantages


def remembering_gagpo() -> Callable[[CreditTable], object]:
    """GAGPO with a memory, which counts each table as one iteration more."""
    credit = load_credit(CreditSettings.model_validate({"use": "gagpo", "decay": 0.5}))
    memory, iterations = credit.memory(), itertools.count()
    assert memory is not None
    return lambda table: credit(table.with_columns(state_value=memory.add(table, next(iterations))[0]))


def cpu_ms(work: Callable[[], object], repeat: int) -> float:
    """Median CPU milliseconds of one call, after one that does not count."""
    work()
    times = []
    for _ in range(repeat):
        started = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - started))
    return statistics.median(times)


def fresh(table: CreditTable) -> CreditTable:
    """The same columns without what was derived from them: a table is credited once."""
    return dataclasses.replace(table)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 512, 1024], help="trajectories")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--naive-up-to", type=int, default=1024, help="trajectories of the row-by-row GiGPO at most")
    return BENCHMARK.run(parser, measure)


def measure(options: argparse.Namespace, report: Report) -> None:
    report.plan(len(BUILT_IN) + 1 + len(options.sizes))
    tables = {size: make_table(size, options.turns) for size in options.sizes}
    found: dict[str, dict[int, float]] = {}
    for name in (*BUILT_IN, REMEMBERING):
        found[name] = {}
        for size, table in tables.items():
            estimator = remembering_gagpo() if name == REMEMBERING else BUILT_IN[name]
            found[name][size] = cpu_ms(lambda table=table, run=estimator: run(fresh(table)), options.repeat)  # type: ignore[misc]
        report.done(name)
    naive = {}
    for size, table in tables.items():
        if size <= options.naive_up_to:
            started = time.process_time()
            advantages = row_by_row_gigpo(table)
            naive[size] = 1e3 * (time.process_time() - started)
            np.testing.assert_allclose(advantages, BUILT_IN["gigpo"](table).turn, atol=1e-6)
        report.done(f"{ROW_BY_ROW}, {size}")
    print_table(found, naive, options)
    for name, by_size in {**found, ROW_BY_ROW: naive}.items():
        report.row(Estimator(estimator=name, ms={size: round(ms, 3) for size, ms in by_size.items()}))
    for size, ms in naive.items():
        figure = f"CPU ms, {size} trajectories of {options.turns} turns"
        report.ratio(figure, ("gigpo", found["gigpo"][size]), (ROW_BY_ROW, ms))
    for name, by_size in found.items() if BUDGET_SIZE in naive else ():
        most = GIGPO_BUDGET if name == "gigpo" else BUDGET
        share = by_size[BUDGET_SIZE] / naive[BUDGET_SIZE]
        report.budget(f"{name}: share of {ROW_BY_ROW}, {BUDGET_SIZE} trajectories", share, at_most=most)


def print_table(found: dict[str, dict[int, float]], naive: dict[int, float], options: argparse.Namespace) -> None:
    """Milliseconds by estimator and size; growth is time per trajectory, the largest size's over the smallest's."""
    small, large = min(options.sizes), max(options.sizes)
    table = Table("estimator", *(f"{size} x {options.turns}" for size in options.sizes), "growth", box=None)
    for name, by_size in sorted(found.items(), key=lambda item: item[1][large]):
        growth = by_size[large] / by_size[small] / (large / small)
        table.add_row(name, *(f"{ms:.2f}" for ms in by_size.values()), f"{growth:.2f}")
    if naive:
        table.add_row(ROW_BY_ROW, *(f"{naive[s]:.0f}" if s in naive else "-" for s in options.sizes), "")
    console = Console(width=120)
    console.print("CPU milliseconds; growth 1 is linear, below 1 better")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
