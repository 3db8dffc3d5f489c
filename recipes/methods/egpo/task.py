"""Single calls of functions, graded by their syntax tree; credit with the entropy of the thought before the call."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from agentrl import Environment, Say, Task
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Normalisation
from agentrl.estimators.score import group_advantage
from agentrl.estimators.table import CreditTable
from agentrl.registry.references import load_object
from agentrl.tools.base import ToolResult
from agentrl.types.episode import Turn

BFCL = Path(__file__).parents[2] / "bfcl"
lines_of = load_object("./backend.py:_lines", BFCL)
json_schema = load_object("./backend.py:_json_schema", BFCL)


@cache
def _rows(category: str) -> list[dict[str, Any]]:
    file = f"BFCL_v4_{category}.json"
    gold = {row["id"]: row["ground_truth"] for row in lines_of(f"possible_answer/{file}")}
    return [{**row, "gold": gold[row["id"]]} for row in lines_of(file)]


def calls(
    n: int | None = None, categories: Sequence[str] = ("simple_python", "multiple"), held_out: bool = False
) -> Iterator[Task]:
    """The first `n` tasks of BFCL in which one call is right, category after category; one in eight is held out."""
    rows = [row for category in categories for row in _rows(category)]
    for row in [row for row in rows if (zlib.crc32(row["id"].encode()) % 8 == 0) == held_out][:n]:
        offered = [
            {
                "name": each["name"].replace(".", "_"),
                "description": each["description"],
                "parameters": json_schema(each["parameters"]),
            }
            for each in row["function"]
        ]
        ((name, allowed),) = row["gold"][0].items()
        right = {"name": name.replace(".", "_"), "arguments": allowed}
        yield Task.of(row["id"], row["question"][0][-1]["content"], tools=["Calls", *offered], right=right)


class Calls(Environment):
    """Takes one call of the functions of a task, and ends the episode."""

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult("", done=True)


def ast_match(task: Task, episode: Any) -> float:
    """1 if a thought precedes the only call, and the call is one that BFCL's possible answers allow; else 0."""
    made = [call for turn in episode.own_turns for call in turn.calls]
    if len(made) != 1 or not made[0].valid or not thought(episode.own_turns[-1]):
        return 0.0
    return float(allows(task.data["right"], made[0].name, made[0].arguments))


def allows(right: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    """True if the name is right, each argument has an allowed value, and only those that may be left out are."""
    allowed = right["arguments"]
    if name != right["name"] or not arguments.keys() <= allowed.keys():
        return False
    given = all(any(_same(value, each) for each in allowed[key]) for key, value in arguments.items())
    return given and all("" in allowed[key] for key in allowed.keys() - arguments.keys())


def _same(value: Any, wanted: Any) -> bool:
    """Equality as in BFCL: texts without case, blanks and punctuation; the values of a mapping are lists."""
    if isinstance(value, str) and isinstance(wanted, str):
        return _bare(value) == _bare(wanted)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_same, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):
        return allows({"name": "", "arguments": wanted}, "", value)
    return bool(isinstance(value, bool) == isinstance(wanted, bool) and value == wanted)


def _bare(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


def thought(turn: Turn) -> float:
    """Share of a reply that its thought takes, by characters: a mark for the estimator, and no pay."""
    before, end, _ = turn.text.partition("</think>")
    return len(before + end) / len(turn.text) if end and before.lstrip().startswith("<think>") else 0.0


class Egpo(Normalisation):
    """Settings of `egpo`.

    Attributes:
        alpha: weight of the entropy of the thought, in nats.
        kappa: the bonus is at most |advantage| / kappa.
    """

    alpha: float = Field(0.4, ge=0)
    kappa: float = Field(2.0, gt=0)


@estimator(granularity="turn", needs=["entropy"], reads=["outcome", "turns"], source="arXiv:2508.05118", certainty="C")
def egpo(table: CreditTable, settings: Egpo) -> Advantages:
    """A + min(alpha H, |A| / kappa): A is GRPO's advantage, H the mean entropy of the tokens of the turn's thought.

    The turn's reward is the share of its tokens that are the thought.
    """
    advantage = group_advantage(table, table.score, settings)[table.trajectory]
    entropy = table.entropy
    assert entropy is not None
    thoughts = np.ceil(table.reward * table.tokens).astype(int)
    spans = zip(table.token_offsets[:-1], thoughts, strict=True)
    mean = np.array([float(entropy[start : start + length].mean()) if length else 0.0 for start, length in spans])
    bonus = np.minimum(settings.alpha * mean, np.abs(advantage) / settings.kappa)
    return Advantages(advantage + bonus, parts={"grpo": advantage, "entropy": bonus})


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Thinks of the function's name, and makes the call with the first allowed value of each argument."""
    right = task.data["right"]
    arguments = {key: _first(values) for key, values in right["arguments"].items() if values[0] != ""}
    yield Say(f"<think>{right['name']}</think>", calls=[(right["name"], arguments)])


def _first(values: Sequence[Any]) -> Any:
    value = values[0]
    return {key: _first(each) for key, each in value.items()} if isinstance(value, dict) else value


def careless(task: Task, rng: random.Random) -> Iterator[Say]:
    """The oracle, which every second time does not think, or makes no call."""
    (said,) = oracle(task, rng)
    yield rng.choice([said, said, Say(calls=said.calls), Say(said.text)])
