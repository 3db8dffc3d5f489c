"""Formulas to satisfy, in conjunctive normal form, with three settings of difficulty."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from math import comb

from agentrl import Say, Task
from agentrl.types.episode import Episode

LITERAL = re.compile("!?[A-Z]")


def formula(rng: random.Random, literals: int, variables: int, clauses: int) -> Task:
    """Draws a formula that an assignment, drawn first, satisfies. `AB & !AC`: a letter is true, `!` negates it.

    Args:
        literals: number of different variables in a clause.
        clauses: number of different clauses.

    Raises:
        ValueError: there are not that many different clauses.
    """
    if clauses > comb(variables, literals) * (2**literals - 1):
        raise ValueError(f"{variables} variables have fewer than {clauses} clauses of {literals} literals")
    names = [chr(ord("A") + k) for k in range(variables)]
    solution = {name: rng.random() < 0.5 for name in names}
    drawn: dict[str, None] = {}
    while len(drawn) < clauses:
        chosen = sorted(rng.sample(names, literals))
        kept = rng.randrange(1, 2**literals)  # the literals that the assignment makes true, as bits: at least one
        drawn["".join(_literal(name, solution[name] == bool(kept >> k & 1)) for k, name in enumerate(chosen))] = None
    text = " & ".join(drawn)
    bits = "".join(str(int(solution[name])) for name in names)
    return Task.of(text.replace(" ", ""), f"Satisfy {text}.", clauses=list(drawn), variables=variables, solution=bits)


def _literal(name: str, positive: bool) -> str:
    return name if positive else f"!{name}"


def satisfies(clauses: list[str], bits: str) -> bool:
    """Returns True if each clause has a literal that the bits of A, B, ... make true."""
    true = {_literal(chr(ord("A") + k), bit == "1") for k, bit in enumerate(bits)}
    return all(true & set(LITERAL.findall(clause)) for clause in clauses)


def satisfied(task: Task, episode: Episode) -> float:
    """1 for any assignment that satisfies the formula: a bit for each variable, in the order of the alphabet."""
    bits = (episode.answer or "").strip()
    fits = len(bits) == task.data["variables"] and set(bits) <= {"0", "1"}
    return float(fits and satisfies(task.data["clauses"], bits))


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with the assignment that the formula was drawn for."""
    yield Say(f"<answer>{task.data['solution']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with random bits: shows the form."""
    yield Say(f"<answer>{''.join(rng.choice('01') for _ in range(task.data['variables']))}</answer>")
