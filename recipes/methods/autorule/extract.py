"""Extracts rules from preferences, in three stages: reasons for each choice, rules in the reasons, one set of rules.

    python extract.py preferences.jsonl --url http://localhost:8000/v1 --model reasoner

A line of the file has `prompt`, `chosen` and `rejected`. The rules are printed as a list for `criteria`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

from agentrl.rewards.functions.judges.client import Judge
from agentrl.rewards.functions.judges.material import question

REASONS = """Two replies to a prompt. Reply {better} was preferred. Think step by step about why.

<prompt>
{prompt}
</prompt>

<reply_a>
{a}
</reply_a>

<reply_b>
{b}
</reply_b>

Explain which properties of the replies justify the choice."""

RULES = """Read how somebody justified a choice between two replies.

<reasons>
{reasons}
</reasons>

State each criterion that the reasons use as a rule that a reply satisfies or does not, without the names of the
replies. End with one line of JSON: {{"rules": ["...", ...]}}"""

MERGE = """These rules say what a good reply is. Some say the same in other words.

<rules>
{rules}
</rules>

Merge rules that overlap, and keep each idea once. End with one line of JSON: {{"rules": ["...", ...]}}"""


async def extract(preferences: Sequence[dict[str, str]], judge: Judge) -> list[str]:
    """Returns the merged rules of preferences, each with `prompt`, `chosen` and `rejected`.

    Raises:
        ValueError: the model gave no list of rules.
    """
    asking = [
        question(REASONS, {"better": "AB"[k % 2], "prompt": each["prompt"]}, **_sides(each, k % 2))
        for k, each in enumerate(preferences)
    ]
    reasons, _ = await judge.ask(asking, lambda reply: reply.strip() or None)
    found, _ = await judge.ask([question(RULES, {}, reasons=each) for each in reasons if each], _rules)
    every = list(dict.fromkeys(rule for rules in found for rule in rules or []))
    if not every:
        raise ValueError("the model gave no rules")
    merged, _ = await judge.ask([question(MERGE, {}, rules="\n".join(f"- {rule}" for rule in every))], _rules)
    return next((rules for rules in merged if rules), every)


def _sides(each: dict[str, str], place: int) -> dict[str, str]:
    """The chosen reply stands first or second in turn: models have a bias of place."""
    sides = [each["chosen"], each["rejected"]]
    return dict(zip("ab", sides[::-1] if place else sides, strict=True))


def _rules(reply: str) -> list[str] | None:
    found = re.findall(r'\{\s*"rules"\s*:\s*\[.*?\]\s*\}', reply, re.DOTALL)
    try:
        return [str(rule) for rule in json.loads(found[-1])["rules"]] if found else None
    except ValueError:
        return None


def main() -> None:
    """Reads preferences and prints their rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preferences", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.preferences.read_text().splitlines() if line.strip()]
    judge = Judge(url=given.url, model=given.model, max_tokens=2048)
    for rule in asyncio.run(extract(lines, judge)):
        print(f"- {json.dumps(rule)}")


if __name__ == "__main__":
    main()
