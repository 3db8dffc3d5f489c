"""Parts of the memory trainer: what it refuses, publishes and writes, and a model that does not write."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.config.train import LossSettings
from agentrl.curriculum.parts import Group
from agentrl.rewards.grading import Unverified
from agentrl.training.backend import Start, TrainingJob
from agentrl.training.compute_thread import Inline
from agentrl.training.memory.experiences import ExperienceTrainer
from agentrl.training.memory.trainer import MemorySettings, MemoryTrainer
from agentrl.training.memory.writers import ApiWriter, OwnSampling, OwnWriter
from agentrl.training.parallel.ranks import Ranks
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.episode import VersionSpan
from agentrl.types.errors import EngineError, TrainError
from agentrl.types.memory import MemoryChange, TextMemory
from tests.counting import TINY, write
from tests.store.make import make_episode

TRAIN = "train: {iterations: 1, groups: 2, group_size: 4}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(str(write(tmp_path / "counting", TINY + TRAIN)))


def job(recipe: Recipe) -> TrainingJob:
    assert recipe.train is not None
    start = Start(texts=["Count to 3.", "4"])
    return TrainingJob(recipe, recipe.train, start, (), Ranks(), Inline(), lambda sha: b"", lambda line: None)


class Notes(MemoryTrainer):
    """A memory trainer that adds an entry for each group."""

    async def write(self, groups: Sequence[Group], seed: int) -> list[MemoryChange | None]:
        return [MemoryChange("add", group.id) for group in groups]


def notes(recipe: Recipe) -> Notes:
    return Notes(job(recipe), MemorySettings())


def group(id: str, *rewards: float, **fields: Any) -> Group:
    members = [make_episode(f"{id}#{k}", group=id, reward=reward, **fields) for k, reward in enumerate(rewards)]
    return Group(id, members[0].task, members) if members else Group(id, make_episode(f"{id}#0").task, [])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda it: it.logprobs([]), "log-probabilities"),
        (lambda it: it.update([], seed=0, progress=0.0), "a step of the optimiser"),
        (lambda it: it.fit([], LossSettings(use="cross_entropy"), 0.1), "a step of the optimiser"),
    ],
    ids=["logprobs", "update", "fit"],
)
async def test_what_only_weights_can_do_is_refused_by_name(
    recipe: Recipe, call: Callable[[Notes], Awaitable[Any]], what: str
) -> None:
    with pytest.raises(TrainError) as refused:
        await call(notes(recipe))
    assert refused.value.message == f"Notes changes a text memory, and was asked for {what}"
    assert (refused.value.place, refused.value.remedy) == ("train.backend", "train.backend=local trains weights")


async def test_an_earlier_memory_is_published_from_its_checkpoint(recipe: Recipe, tmp_path: Path) -> None:
    trainer = notes(recipe)
    await trainer.learn([], [group("g0")], seed=0, progress=0.0)
    trainer.memory.save(tmp_path)
    await trainer.learn([], [group("g1")], seed=0, progress=0.0)
    engine: Any = object()
    earlier = await trainer.publish(engine, tmp_path)
    assert (earlier.version, earlier.entries) == (1, {"G0": "g0"})
    assert trainer.engine is None, "the engine of an evaluation is not the one that the training samples from"
    (tmp_path / "empty").mkdir()
    assert await trainer.publish(engine, tmp_path / "empty") == TextMemory()
    now = await trainer.publish(engine)
    assert (now.version, now.entries) == (2, {"G0": "g0", "G1": "g1"})
    assert trainer.engine is engine


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
async def test_the_policy_is_written_once_and_linked_or_copied_later(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(95, "Operation not supported")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    trainer, folders = notes(recipe), [tmp_path / "it-0", tmp_path / "it-1"]
    await trainer.open()
    for number, folder in enumerate(folders):
        folder.mkdir()
        await trainer.learn([], [group(f"g{number}")], seed=0, progress=0.0)
        assert await trainer.save(folder) == {}
    first, second = ({path.name: path for path in folder.iterdir()} for folder in folders)
    assert first.keys() == second.keys() >= {"model.safetensors", "config.json", "tokenizer.json", "memory.json"}
    policy = first.keys() - {"memory.json"}
    assert all(first[name].read_bytes() == second[name].read_bytes() for name in policy)
    assert {second[name].stat().st_nlink for name in policy} == ({2} if links else {1})
    memories = [TextMemory.load(folder) for folder in folders]
    assert [each and [*each.entries] for each in memories] == [["G0"], ["G0", "G1"]], "each has its own memory"


class Replies(Engine):
    """An engine that replies in bytes, and keeps its prompts."""

    def __init__(self, reply: str = "It went on.", max_context: int = 1 << 20) -> None:
        self.reply, self.max_context = reply, max_context
        self.prompts: list[str] = []
        self.begun: set[str] = set()

    def begin_session(self, session: str, *given: Any) -> None:
        self.begun.add(session)

    def end_session(self, session: str) -> None:
        self.begun.remove(session)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        self.prompts.append(ByteTokenizer().decode([*token_ids]))
        ids = [*self.reply.encode(), ByteTokenizer().stop_ids[0]]
        versions = [VersionSpan(0, 0, len(ids))]
        return Completion(token_ids=ids, logprobs=[-0.1] * len(ids), finish="stop", versions=versions)


class Gone(Replies):
    """An engine whose server has ended."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        raise EngineError("the server has ended", place="http://server")


SERVED: Any = SimpleNamespace(chat=ByteTokenizer)


def padded(most: int) -> str:
    return f"Question {'x' * most}"


async def test_the_policy_writes_by_its_own_engine_as_much_as_fits(recipe: Recipe) -> None:
    engine, sampling = Replies(), OwnSampling(chars=64_000, max_tokens=100)
    assert await OwnWriter(engine, SERVED, recipe, sampling).ask([padded], 0) == ["It went on."]
    shorter = Replies(max_context=5000)
    assert await OwnWriter(shorter, SERVED, recipe, sampling).ask([padded], 0) == ["It went on."]
    assert [each.prompts[0].count("x") for each in (engine, shorter)] == [64_000, 4000]
    assert engine.begun == shorter.begun == set()


async def test_a_question_that_fits_in_no_form_has_no_reply(recipe: Recipe) -> None:
    engine = Replies(max_context=600)
    asked: list[Any] = [padded, lambda most: "Short?"]
    found = await OwnWriter(engine, SERVED, recipe, OwnSampling(chars=64_000, max_tokens=100)).ask(asked, 0)
    assert found == [None, "It went on."]
    assert len(engine.prompts) == 1


async def test_an_engine_that_fails_while_it_writes_is_named(recipe: Recipe) -> None:
    engine = Gone()
    with pytest.raises(TrainError, match="the policy's engine failed while it wrote the memory: the server") as failed:
        await OwnWriter(engine, SERVED, recipe, OwnSampling()).ask([padded], 0)
    assert failed.value.place == "http://server"
    assert failed.value.remedy == "the same command continues from the last checkpoint"
    assert engine.begun == set(), "its session has ended"


async def test_material_that_the_writer_refuses_has_no_reply() -> None:
    class Judge:
        url = "http://writer"

        async def ask(self, questions: list[Any], read: Callable[[str], Any]) -> tuple[list[Any], str]:
            if questions[0](10) == "bad":
                raise Unverified("it refuses the text")
            return [None, read("an experience")], "hash"

    judge: Any = Judge()
    assert await ApiWriter(judge).ask([lambda most: "bad", lambda most: "good"], 0) == [None, "an experience"]


async def test_the_writer_is_shown_the_answer_of_an_attempt(recipe: Recipe) -> None:
    trainer = ExperienceTrainer(job(recipe), ExperienceTrainer.Settings())
    engine = Replies()
    trainer.engine, trainer.loaded = engine, SERVED
    told = group("g0", 0.0, 1.0, turns=1)
    answers = ["in the cellar", None]
    members = [msgspec.structs.replace(e, answer=a) for e, a in zip(told.episodes, answers, strict=True)]
    await trainer.write([Group("g0", told.task, members)], seed=0)
    first, second = engine.prompts[:2]
    assert "\n[answer]\nin the cellar\n</attempt>" in first
    assert "[answer]" not in second
