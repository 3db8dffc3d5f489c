"""The trainer of Training-Free GRPO: a model compares the episodes of a group, and writes experiences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from pydantic import Field

from agentrl.curriculum.parts import Group
from agentrl.models.load import LoadedModel
from agentrl.registry.checks import variable
from agentrl.rewards.functions.judges.client import Judge, Question
from agentrl.rewards.functions.judges.material import asked, question, transcript
from agentrl.training.backend import TrainingJob
from agentrl.training.memory.trainer import MemorySettings, MemoryTrainer
from agentrl.training.memory.writers import ApiWriter, OwnSampling, OwnWriter, Writer
from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import earned
from agentrl.types.figures.sums import vary
from agentrl.types.memory import OPERATIONS, MemoryChange

_TRIES = 100  # brackets of a reply at which a list may begin

AIM = "Solve more tasks of this kind."

SUMMARY = """\
An agent tried a task. Summarise its attempt, so that attempts can be compared afterwards.
The aim of the comparison: {aim}

<task>
{task}
</task>

<answer_expected>
{answer}
</answer_expected>

The attempt, which earned the reward {reward}:
<attempt>
{attempt}
</attempt>

Go through it step by step: what was done, what came back, why it was done, what was missed. Then say in a sentence
which decisions made it good or bad.
"""

COMPARISON = """\
An agent tried the same task several times. Find out what the better attempts did that the worse ones did not.
The aim: {aim}

<task>
{task}
</task>

<answer_expected>
{answer}
</answer_expected>

<attempts>
{attempts}
</attempts>

State at most {experiences} general experiences that would help with other tasks of this kind. Where one holds only
under a condition, say so: "When ..., ...". Write them, one a line, between the tags:
<experiences>
1. ...
</experiences>
"""

OPERATIONS_ASKED = """\
A memory holds experiences of an agent. Decide for each new experience what to do with it.
The aim: {aim}

<memory>
{memory}
</memory>

<new>
{new}
</new>

ADD: it says something that no entry says. UPDATE: it refines an entry; give the entry's id and its whole new text.
DELETE: it shows that an entry is wrong or harmful; give the entry's id. NONE: an entry says it already.
Reply with a JSON list, one object for each new experience, and nothing else:
[{{"operation": "ADD", "id": null, "content": "Name: what to do, in a sentence."}}]
"""

MERGE = """\
A memory holds experiences of an agent. Several comparisons proposed changes to it. Merge them into one list of changes.
The aim: {aim}

<memory>
{memory}
</memory>

<proposed>
{proposed}
</proposed>

Several changes of one entry become one UPDATE that says what they have in common. Additions that say the same become
one ADD. Reply with a JSON list of objects, and nothing else:
[{{"operation": "ADD, UPDATE or DELETE", "id": "id of an entry, or null", "content": "the text"}}]
"""


class ExperienceTrainer(MemoryTrainer):
    """Training-Free GRPO (arXiv:2510.08191; github.com/TencentCloudADP/youtu-agent, utu/practice): the advantage of a
    group is a text.

    In each iteration: every episode of a group with different rewards is summarised; the summaries of a group are
    compared, which gives at most `experiences` experiences; they become operations (ADD, UPDATE, DELETE, NONE) on the
    memory; and the operations of all groups are merged into one list, which is applied. Weights never change.

    Metrics: memory_entries, memory_added, memory_updated, memory_deleted, memory_skipped (replies
    without JSON, operations on unknown ids or without a text).
    """

    class Settings(MemorySettings):
        """Settings in a recipe."""

        model: Judge | None = Field(
            None, description="The model that writes, behind an API (url, model); null: the policy itself."
        )
        own: OwnSampling = Field(default_factory=OwnSampling, description="Without `model`: sampling of the policy.")
        aim: str = Field(AIM, description="What the experiences shall improve, in every prompt.")
        experiences: int = Field(2, gt=0, description="Maximum number of experiences of one group.")
        ground_truth: bool = Field(True, description="Show the task's answer (`answer` in its data) and the rewards.")

    capabilities: ClassVar = MemoryTrainer.capabilities

    def __init__(self, job: TrainingJob, settings: Settings) -> None:
        super().__init__(job, settings)
        self._own = settings

    async def open(self) -> LoadedModel:
        """Loads the policy, after a look at the key of the model that writes.

        Raises:
            RecipeError: the environment does not have it.
        """
        if self._own.model is not None and self._own.model.api_key_env is not None:
            variable(self._own.model.api_key_env, "train.backend.model.api_key_env")
        return await super().open()

    async def write(self, groups: Sequence[Group], seed: int) -> list[MemoryChange | None]:
        """Returns the merged operations."""
        different = [group for group in groups if vary(earned(each) or 0.0 for each in group.episodes)]
        writer = self._writer()
        told = await self._summaries(writer, different, seed)
        found = await self._experiences(writer, different, told, seed)
        return await self._operations(writer, found, seed)

    def _writer(self) -> Writer:
        if self._own.model is not None:
            return ApiWriter(self._own.model)
        assert self.engine is not None
        return OwnWriter(self.engine, self.loaded, self.job.recipe, self._own.own)

    async def _summaries(self, writer: Writer, groups: Sequence[Group], seed: int) -> list[list[str]]:
        """The summaries of each group's episodes, with their rewards. An episode without one is left out."""
        questions = [self._of_episode(group, each) for group in groups for each in group.episodes]
        replies = iter(await writer.ask(questions, seed))
        told = []
        for group in groups:
            pairs = [(next(replies), each) for each in group.episodes]
            lines = [f"Attempt {k + 1} (reward {self._reward(each)}):\n{said}" for k, (said, each) in enumerate(pairs)]
            told.append([line for line, (said, _) in zip(lines, pairs, strict=True) if said is not None])
        return told

    def _of_episode(self, group: Group, episode: Episode) -> Question:
        attempt = transcript(episode.turns)
        if episode.answer is not None:
            attempt += f"\n[answer]\n{episode.answer}"
        return question(SUMMARY, {**self._about(group), "reward": self._reward(episode)}, attempt=attempt)

    async def _experiences(
        self, writer: Writer, groups: Sequence[Group], told: Sequence[Sequence[str]], seed: int
    ) -> list[str | None]:
        """The experiences of each group, as text; None if the reply has none."""
        about = [{**self._about(group), "experiences": self._own.experiences} for group in groups]
        questions = [
            question(COMPARISON, each, attempts="\n\n".join(lines)) for each, lines in zip(about, told, strict=True)
        ]
        return [None if said is None else _between(said) for said in await writer.ask(questions, seed + 1)]

    async def _operations(self, writer: Writer, found: Sequence[str | None], seed: int) -> list[MemoryChange | None]:
        """Operations for the experiences of each group, merged. None stands for each reply that could not be read."""
        lost: list[MemoryChange | None] = [None for each in found if each is None]
        memory = self.memory.text or "(empty)"
        questions = [
            question(OPERATIONS_ASKED, {"aim": self._own.aim}, memory=memory, new=each) for each in found if each
        ]
        proposed: list[Mapping[str, Any]] = []
        for reply in await writer.ask(questions, seed + 2):
            objects = operations_in(reply)
            lost += [None] if objects is None else []
            proposed += [each for each in objects or () if each.get("operation") != "NONE"]
        if len(found) < 2 or not proposed:
            return [*lost, *map(change_of, proposed)]
        listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in proposed)
        (merged,) = await writer.ask(
            [question(MERGE, {"aim": self._own.aim}, memory=memory, proposed=listed)], seed + 3
        )
        plan = operations_in(merged)
        return [*lost, None] if plan is None else [*lost, *changes_of(plan)]

    def _about(self, group: Group) -> dict[str, Any]:
        answer = group.task.data.get("answer") if self._own.ground_truth else None
        return {"aim": self._own.aim, "task": asked(group.task), "answer": "(not shown)" if answer is None else answer}

    def _reward(self, episode: Episode) -> str:
        return f"{earned(episode) or 0.0:g}" if self._own.ground_truth else "(not shown)"


def operations_in(reply: str | None) -> list[Mapping[str, Any]] | None:
    """Returns the objects of the first JSON list of objects in a reply, wherever it stands; None without one."""
    empty: list[Mapping[str, Any]] | None = None
    for bracket in islice(re.finditer(r"\[", reply or ""), _TRIES):
        try:
            found, _ = json.JSONDecoder().raw_decode(reply or "", bracket.start())
        except (ValueError, RecursionError):
            continue
        if objects := [each for each in found if isinstance(each, Mapping)]:
            return objects
        empty = [] if not found else empty
    return empty


def changes_of(operations: Iterable[Mapping[str, Any]]) -> list[MemoryChange | None]:
    """Returns the changes of operations, without those that change nothing."""
    return [change_of(each) for each in operations if each.get("operation") != "NONE"]


def change_of(operation: Mapping[str, Any]) -> MemoryChange | None:
    """Returns the change of one operation; None if it is none."""
    name, id, text = (operation.get(key) for key in ("operation", "id", "content"))
    kind = next((each for each in OPERATIONS if each.upper() == name), None)
    if kind is None or not isinstance(text or "", str) or not isinstance(id, str | None):
        return None
    return MemoryChange(kind, " ".join((text or "").split()), id and id.strip("[] "))


def _between(reply: str) -> str | None:
    found = re.search(r"<experiences>\s*(.*?)\s*</experiences>", reply, re.DOTALL | re.IGNORECASE)
    return found[1] if found and found[1] else None
