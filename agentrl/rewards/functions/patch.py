"""Similarity of patches."""

from __future__ import annotations

import difflib
import re

from agentrl.rewards.checker import Checker
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.verifiers import code_in, gold
from agentrl.sandbox.helper import TooMuch
from agentrl.types.episode import Episode
from agentrl.types.task import Task


@reward(source="SWE-RL, arXiv:2502.18449; facebookresearch/swe-rl core/reward.py (calculate_reward_unidiff)")
async def patch_similarity(
    task: Task, episode: Episode, *, key: str = "patch", malformed: float = -1.0, timeout_s: float = 30.0
) -> float | Scored:
    """Mean over files of the similarity of the changes of two unified diffs, 0 to 1.

    The files are those of either patch; a file that only one of them touches counts 0. Similarity is
    `difflib.SequenceMatcher(autojunk=False).ratio()` of the hunks. Of several gold patches the best match counts.

    Args:
        key: the field of `task.data` with the gold patch.
        malformed: the reward of an answer that is not a unified diff (-1 in the paper).
        timeout_s: CPU time. A patch that takes longer to compare (long hunks with few different characters) scores 0.
    """
    references = [changes(patch) for patch in gold(task, key)]
    said = changes(code_in(episode.answer or ""))
    if not said:
        return Scored(malformed, "the answer is not a unified diff")
    try:
        return max([float(await _HELPER.ask(similarity, said, one, cpu_s=timeout_s)) for one in references])
    except TooMuch as problem:
        return Scored(0.0, str(problem))


_HELPER = Checker("agentrl.rewards.functions.patch")


def changes(patch: str) -> dict[str, str]:
    """By path, the hunks of a unified diff as text, with a note in front if the file was renamed."""
    found: dict[str, list[str]] = {}
    old = path = ""
    left = [0, 0]  # lines of the current hunk that are still to come: old side, new side
    for line in patch.splitlines():
        if path and (left[0] > 0 or left[1] > 0):
            found[path].append(line)
            left[0] -= line[:1] in (" ", "-", "")
            left[1] -= line[:1] in (" ", "+", "")
        elif line.startswith("--- "):
            old, path = _path(line), ""
        elif line.startswith("+++ "):
            new = _path(line)
            path = old if new == "/dev/null" else new
            if old not in ("/dev/null", path):
                path = old
                found.setdefault(path, []).append(f"rename from {old} to {new}")
        elif path and (hunk := _HUNK.match(line)):
            found.setdefault(path, []).append(line)
            left = [int(hunk["old"] or 1), int(hunk["new"] or 1)]
        elif path and line.startswith("\\"):  # "\ No newline at end of file"
            found[path].append(line)
    return {path: "\n".join(lines).strip() for path, lines in found.items()}


def similarity(said: dict[str, str], wanted: dict[str, str]) -> float:
    """Mean over the files of either patch; 1 if both are empty."""
    paths = said.keys() | wanted.keys()
    ratios = [_ratio(said.get(path), wanted.get(path)) for path in sorted(paths)]
    return sum(ratios) / len(ratios) if ratios else 1.0


def _ratio(said: str | None, wanted: str | None) -> float:
    if not said or not wanted:
        return 0.0
    return 1.0 if said == wanted else difflib.SequenceMatcher(None, said, wanted, autojunk=False).ratio()


_HUNK = re.compile(r"@@ -\d+(?:,(?P<old>\d{1,9}))? \+\d+(?:,(?P<new>\d{1,9}))? @@")


def _path(line: str) -> str:
    name = line[4:].split("\t")[0].strip()
    return name[2:] if name.startswith(("a/", "b/")) else name
