"""Answers that no reward can compare, and that none may stumble over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from tests.attacks.cases import DRIVER, Case
from tests.attacks.families import words
from tests.attacks.families.queries import query
from tests.attacks.played import Attack, Played
from tests.sql.test_in_a_helper import EVIL
from tests.sql.test_sql import SHOP

_GOLD: dict[str, Any] = {
    "answer": "1729", "sql": "SELECT name FROM item WHERE id = 2", "database": SHOP,
    "patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
    "evidence": ["tea"], "no_search_score": 0.0,
}  # fmt: skip
_PATCHES = (
    "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n" + "-a\n+c\n" * 3000,
    "diff --git a/x b/x\n" * 2000,
    "@@ -1 +1 @@\n" * 5000,
    "--- \n+++ \n@@ @@\n",
)
_CALC = (
    "1729 + 0",
    "1730",
    "17 29",
    "1,729,0",
    "1728!",
    "\\frac{1729}{0}",
    "{1729, 1}",
    "1729 or 1730",
    "x = 1728",
    "\\neg 1728",
    "1729^{1728}",
    "The answer is 1729 or 1730.",
    "The answer is 1729, 1730, 1731.",
    "The answer is between 1729 and 1800",
    "The final answer is 1729. No, 1730.",
)
_NOT_PAID = (
    "f1", "sql_partial", "sql_syntax", "sql_schema", "sql_ngrams", "patch_similarity", "format", "turn_format",
    "brier", "answer_recall",
    "retrieval_recall", "overlong",
)  # fmt: skip
"""Rewards that a wrong answer may have some of: they must be numbers."""


class Answers(Played):
    """A number or a query was asked for, and none of them is it."""

    name = "answers"
    places = (DRIVER,)
    batch = 12
    recipe: ClassVar[dict[str, Any]] = {
        "rewards": {
            "exact_match": {}, "numeric": {}, "maths": {"form": "value", "timeout_s": 1},
            "sql_execution": {"timeout_s": 1},
            **{name: {"weight": 0} for name in _NOT_PAID},
            "laser": {"target": 10, "weight": 0}, "search_planning": {"weight": 0}, "unary_feedback": {"weight": 0},
            "any_maths": {"use": "maths", "timeout_s": 1, "weight": 0},
        },
    }  # fmt: skip

    def listed(self) -> Sequence[str]:
        return [f"{kind} {n}" for kind, texts in _LISTED.items() for n in range(len(texts))]

    def attack(self, case: Case) -> Attack:
        if not case.drawn:
            kind, _, number = case.name.partition(" ")
            return self._said(_LISTED[kind][int(number)])
        rng = case.random()
        said = rng.choice((words.text, words.text, query, lambda rng: rng.choice((*_PATCHES, *_CALC))))(rng)
        return self._said(
            rng.choice(
                ("{}", "<answer>{}</answer>", "```sql\n{}\n```", "\\boxed{{{}}}", "$${}$$", "The answer is {}.")
            ).format(said)
        )

    def _said(self, text: str) -> Attack:
        return Attack(answer=text, data=_GOLD)

    def honest(self, rng: random.Random) -> Attack:
        return Attack(answer="<answer>1729</answer>", data=_GOLD, earns=3.0)


_LISTED = {"text": words.TEXTS, "sum": words.SUMS, "sql": EVIL["sqlite"], "patch": _PATCHES, "number": _CALC}
