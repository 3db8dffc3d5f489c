"""`agentrl proxy` records with the recipe's rewards, and `agentrl train --from` trains on what was recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.api.proxy import Scorer, proxy
from agentrl.api.train import train
from agentrl.config.limits import Limits
from agentrl.rewards.components import RewardSet
from agentrl.store.run_dir import RunDir
from agentrl.training.batch.recorded import RecordedGroups
from agentrl.training.batch.recorded_buffer import RecordedBuffer
from agentrl.training.batch.truncation import Truncation
from agentrl.types.episode import CallRecord, Episode, Turn
from agentrl.types.errors import AgentRLError, RecipeError, TrainError
from agentrl.types.sandbox import SandboxSpec
from agentrl.types.task import Task
from tests.command import agentrl
from tests.commands.test_proxy import post, served
from tests.engines.vllm_world import small_model
from tests.sound import assert_sound
from tests.store.make import make_episode

RECIPE = """\
name: recorded
agent: {format: tags}
rewards: {length: ./length.py:length, right: {use: exact_match, key: gold, weight: 2}}
model: {path: model}
sampling: {max_tokens: 6}
train: {groups: 2, group_size: 3, lr: 1.0e-3}
"""
LENGTH = """
def length(episode):
    return len(episode.turns[-1].text) / 100
"""


def episode(url: str, name: str, closing: dict[str, Any]) -> Any:
    """Two turns, the second in answer to a user."""
    messages = [{"role": "user", "content": f"Say {name[0]}."}]
    for said in ("Again.", None):
        reply = post(f"{url}/s/{name}/v1/chat/completions", {"messages": messages})
        messages.append(reply["choices"][0]["message"])
        messages += [{"role": "user", "content": said}] if said else []
    return post(f"{url}/s/{name}/end", closing)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe without tasks."""
    monkeypatch.chdir(tmp_path)
    small_model(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "length.py").write_text(LENGTH)
    return tmp_path


@pytest.mark.slow
def test_what_was_recorded_trains(folder: Path) -> None:
    with served(folder) as url:
        for name in (f"{group}{k}" for group in "abc" for k in range(3)):
            episode(url, name, {"group": name[0], "answer": "x", "data": {"gold": "y" if name[1] == "0" else "x"}})
        assert episode(url, "f0", {"answer": "x"})["reward"] is None
        assert episode(url, "g0", {"data": {"gold": "y"}, "answer": "x", "reward": 0.5})["reward"] > 0.5
    with RunDir.read(folder / "run") as run:
        recorded = {each.id: each for each in run.episodes()}
    assert recorded["f0"].status == "user_error"
    assert "gold" in recorded["f0"].error.message  # type: ignore[union-attr]
    assert recorded["a1"].components.keys() == {"length", "right"}
    assert recorded["a1"].reward == pytest.approx(2.0 + recorded["a1"].components["length"])
    assert {each.group_id for each in recorded.values()} == {*"abc", "f0", "g0"}
    corrected = ("--set", "train.old_logprobs=engine")
    agentrl("train", "recipe.yaml", "--from", "run", "--passes", "2", *corrected, cwd=folder)
    assert_sound(folder / "runs/recorded-recorded")
    with RunDir.read(folder / "runs" / "recorded-recorded") as run:
        lines = [json.loads(json.dumps(line)) for line in run.metrics()]
        trained = {each.id: each for each in run.episodes()}
    assert trained.keys() == recorded.keys() - {"f0"}
    assert [line["trained_groups"] for line in lines] == [
        ["a", "b"], ["c", "g0"], ["a", "b"], ["c", "g0"],
    ]  # fmt: skip
    assert all(line["grad_norm"] > 0 for line in lines)
    assert lines[0]["mismatch_max"] < 1e-3  # the policy that was recorded
    assert lines[-1]["mismatch_max"] > 1e-3  # three updates later
    # The checkpoint is a model like any other.
    newest = sorted((folder / "runs" / "recorded-recorded" / "checkpoints").iterdir())[-1]
    again = ("--out", "more", "--set", f"model.path={newest}", "--set", "train.groups=4")  # one update
    agentrl("train", "recipe.yaml", "--from", "run", *again, cwd=folder)


@pytest.mark.parametrize(
    ("run", "overrides", "said"),
    [
        ("empty", {}, "no recorded episode was scored"),
        ("empty", {"scripts.o": "./oracle.py:oracle", "warm_start": "o"}, "without stages before"),
        ("other", {}, "was not sampled by a model with the recipe's tokenizer"),
        (None, {}, "the recipe has no tasks"),
    ],
)
def test_what_cannot_train_is_refused(folder: Path, run: str | None, overrides: dict[str, str], said: str) -> None:
    (folder / "oracle.py").write_text("def oracle(task, rng):\n    yield\n")
    for name in ("empty", "other"):
        with RunDir.create(folder / name, {"command": "proxy", "recipe": {}, "base": "."}) as made:
            if name == "other":
                made.add(make_episode("other", split="proxy"))
    given = None if run is None else folder / run
    with pytest.raises(AgentRLError, match=said):
        train(folder / "recipe.yaml", from_run=given, overrides=overrides, out=folder / "out", reporters=())


async def test_outputs_and_images_come_along(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "source", {}) as source:
        sha = source.put_blob(b"long")
        call = CallRecord(id="c", name="f", arguments={}, outcome="ok", result="lo", duration_s=0.0, blob=sha)
        turn = Turn(index=0, node=0, text="a", calls=[call], finish="stop", generate_s=0.0)
        task = Task.of("t", "q")
        source.add(Episode(id="e#0", group_id="e", task=task, status="done", split="rollout", reward=1.0, turns=[turn]))
    with RunDir.read(tmp_path / "source") as source, RunDir.create(tmp_path / "into", {}) as into:
        await RecordedBuffer(RecordedGroups.of(source), into, 1, lambda episode: True).next_batch(0)
        assert into.get_blob(sha) == b"long"


def recorded(folder: Path, groups: dict[str, list[Episode]], **info: Any) -> Path:
    """A run that holds these episodes."""
    with RunDir.create(folder, info) as made:
        for id, members in groups.items():
            for episode in members:
                made.add(msgspec.structs.replace(episode, id=f"{id}/{episode.id}", group_id=id, split="rollout"))
    return folder


@pytest.mark.parametrize(("truncated", "timed_out"), [("keep", "keep"), ("drop", "keep"), ("mask", "drop")])
async def test_the_rules_for_episodes_that_a_limit_ended_hold_for_recordings(
    tmp_path: Path, truncated: Any, timed_out: Any
) -> None:
    whole, long, late, broken = (make_episode(name) for name in ("whole", "long", "late", "broken"))
    members = [
        whole,
        msgspec.structs.replace(long, status="truncated", stop="turns"),
        msgspec.structs.replace(late, status="truncated", stop="wall"),
        msgspec.structs.replace(broken, status="truncated", stop="sandbox_broken"),
    ]
    rules = Truncation(truncated, timed_out)
    recorded(tmp_path / "run", {"a": members})
    with RunDir.read(tmp_path / "run") as source, RunDir.create(tmp_path / "into", {}) as into:
        batch = await RecordedBuffer(RecordedGroups.of(source), into, 1, rules.counts).next_batch(0)
    names = {"long": truncated, "late": timed_out}
    assert len(batch.episodes) == 4
    (group,) = batch.groups
    counted = {episode.id.removeprefix("a/") for episode in group.episodes}
    assert counted == {"whole", "broken", *(name for name, rule in names.items() if rule != "drop")}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_no_update_holds_a_group_twice_and_each_pass_holds_all(tmp_path: Path, size: int) -> None:
    path = recorded(tmp_path / "run", {id: [make_episode("e")] for id in "abc"})
    with RunDir.read(path) as run:
        source = RecordedGroups.of(run, passes=3)
        batches = [[ids[0][0] for ids in source.batch(k, size)] for k in range(source.iterations(size))]
    assert all(len(set(batch)) == len(batch) <= size for batch in batches)
    per_pass = len(batches) // 3
    for k in range(3):
        of_pass = batches[k * per_pass : (k + 1) * per_pass]
        assert sorted(id for batch in of_pass for id in batch) == ["a", "b", "c"]


CUT = {"name": "cut", "sampling": {"top_p": 0.7}}
STAGES = {"name": "cut", "stages": [{"name": "s", "rl": {"sampling": {"top_p": 0.7}}}]}


@pytest.mark.parametrize("recipe", [CUT, STAGES])
@pytest.mark.parametrize("replayed", [False, True])
def test_what_was_sampled_from_a_part_of_the_distribution_does_not_train(
    folder: Path, recipe: dict[str, Any], replayed: bool
) -> None:
    path = recorded(folder / "run", {"a": [make_episode("e")]}, recipe=recipe, base=str(folder))
    if not replayed:
        with RunDir.read(path) as run, pytest.raises(TrainError, match=r"was sampled with sampling\.top_p 0\.7"):
            RecordedGroups.of(run).check(None)  # type: ignore[arg-type]
        return
    overrides = {"tasks.jsonl": "t.jsonl", "tasks.prompt": "x"}
    with pytest.raises(TrainError, match=r"was sampled with sampling\.top_p 0\.7"):
        train(folder / "recipe.yaml", replay=path, overrides=overrides, out=folder / "o", reporters=())


@pytest.mark.parametrize(
    ("overrides", "passes", "said"),
    [
        ({}, 1, "make 2 updates"),
        ({"train.groups": 3}, 2, "make 2 updates"),
        ({"train.groups": 3, "curriculum": [{"relift": {"script": "o", "buffer": 1}}]}, 1, "plays demonstrations"),
    ],
)
def test_a_recipe_whose_loss_or_curriculum_cannot_train_on_recordings(
    folder: Path, overrides: dict[str, Any], passes: int, said: str
) -> None:
    path = recorded(folder / "run", {id: [make_episode("e")] for id in "abc"})
    given = {"scripts.o": "./oracle.py:oracle", **overrides}
    with pytest.raises(RecipeError, match=said):
        train(folder / "recipe.yaml", from_run=path, passes=passes, overrides=given, out=folder / "o", reporters=())


@pytest.mark.parametrize("needed", ["group", "env", "tools", "sandbox"])
def test_a_reward_that_no_session_can_have_is_refused_before_the_start(folder: Path, needed: str) -> None:
    (folder / "lacking.py").write_text(f"def lacking({needed}):\n    return 0.0\n")
    with pytest.raises(RecipeError, match="rewards.lacking: reward 'lacking' "):
        proxy("recipe.yaml", overrides={"rewards.lacking": "./lacking.py:lacking"}, out="run", note=print)
    assert not (folder / "run").exists()


async def test_scoring_a_session_has_a_limit_and_sees_its_images() -> None:
    async def slow(episode: Episode) -> float:
        await asyncio.sleep(60)
        return 1.0

    def size(read_blob: Any) -> float:
        return float(len(read_blob("sha")))

    ended = Episode(id="s", group_id="s", task=Task.of("s", "q"), status="done")
    for rewards, score_s in (({"size": size}, 60.0), ({"slow": slow}, 0.05)):
        limits = Limits(score_s=score_s)
        scorer = Scorer(RewardSet.from_recipe(rewards), None, SandboxSpec(), limits, lambda sha: b"1234")
        scored = await scorer(ended)
        if "size" in rewards:
            assert scored.reward == 4.0
        else:
            assert scored.error is not None
            assert "took longer than 0.05 s" in scored.error.message
