"""Text memories: they change as asked, stand in prompts, and are part of a policy in checkpoints and evaluations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import agentrl
from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.store.run_dir import RunDir
from agentrl.training.memory.experiences import change_of, operations_in
from agentrl.types.errors import AgentRLError, StoreError, TrainError
from agentrl.types.memory import LONGEST, MemoryChange, TextMemory
from tests.counting import TINY, metrics, write
from tests.engines.http_server import serving, status

TRAIN = "train: {iterations: 2, groups: 3, group_size: 4}\n"


def test_changes_are_made_in_order_and_ids_are_never_used_again() -> None:
    memory, told = TextMemory().changed(
        [MemoryChange("add", "a"), MemoryChange("add", "b"), MemoryChange("delete", id="G1")]
    )
    assert memory.entries == {"G0": "a"}
    assert told == {
        "memory_entries": 1,
        "memory_added": 2,
        "memory_updated": 0,
        "memory_deleted": 1,
        "memory_skipped": 0,
    }
    memory, told = memory.changed([MemoryChange("add", "c"), MemoryChange("update", "A", "G0")])
    assert memory.entries == {"G0": "A", "G2": "c"}
    assert told["memory_updated"] == 1


def test_what_cannot_be_done_is_skipped_and_counted() -> None:
    full = TextMemory(entries={"G0": "a"}, numbered=1, most=1)
    lost = [
        None,
        MemoryChange("update", "x", "G7"),
        MemoryChange("delete", id="G7"),
        MemoryChange("update", "", "G0"),
        MemoryChange("add", "b"),
    ]
    memory, told = full.changed(lost)
    assert memory == full
    assert told["memory_skipped"] == len(lost)


def test_an_entry_is_bounded() -> None:
    """It stands in every prompt: a long one would leave no room for an episode."""
    long = MemoryChange("add", "x" * 10_000), MemoryChange("update", "y" * 10_000, "G0")
    memory, told = TextMemory().changed(long)
    assert memory.entries == {"G0": "y" * LONGEST}
    assert (told["memory_added"], told["memory_updated"]) == (1, 1)


def test_the_entries_stand_at_the_end_of_the_system_message() -> None:
    memory = TextMemory(entries={"G0": "Count by one.", "G3": "Stop in time."}, heading="Read:")
    assert memory.under("Count.") == "Count.\n\nRead:\n[G0] Count by one.\n[G3] Stop in time."
    assert memory.under(None) == "Read:\n[G0] Count by one.\n[G3] Stop in time."
    assert TextMemory().under("Count.") == "Count."
    assert TextMemory(entries={"G0": "a"}, shown=False).under("Count.") == "Count."


def test_a_folder_holds_it(tmp_path: Path) -> None:
    assert TextMemory.load(tmp_path) is None
    memory = TextMemory(entries={"G0": "ä"}, version=3, numbered=1)
    memory.save(tmp_path)
    assert TextMemory.load(tmp_path) == memory
    (tmp_path / "memory.json").write_text("[")
    with pytest.raises(StoreError, match="no text memory"):
        TextMemory.load(tmp_path)


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ('[{"operation": "ADD", "id": null, "content": "x"}]', [MemoryChange("add", "x")]),
        (
            'Sure:\n```json\n[{"operation": "UPDATE", "id": "G0",\n "content": "x\\n y"}]\n```',
            [MemoryChange("update", "x y", "G0")],
        ),
        ('[{"operation": "DELETE", "id": "G0"}]', [MemoryChange("delete", "", "G0")]),
        ('```\n[{"operation": "DELETE", "id": "[G0]"}]\n```', [MemoryChange("delete", "", "G0")]),
        (
            'I refine [G1]: [{"operation": "ADD", "content": "Write ```sh``` first."}]. Good?',
            [MemoryChange("add", "Write ```sh``` first.")],
        ),
        ("Nothing: []", []),
        ('[{"operation": "MERGE", "id": "G0"}]', [None]),
        ('[{"operation": "ADD", "content": 3}]', [None]),
        ("I would add one.", None),
        ('{"operation": "ADD"}', None),
        ("[" * 100_000 + "]", None),
        (None, None),
    ],
)
def test_operations_are_read_from_a_reply(reply: str | None, found: Any) -> None:
    operations = operations_in(reply)
    assert (None if operations is None else [change_of(each) for each in operations]) == found


@dataclass
class Model:
    """A model behind an API: the policy, which counts by one if its prompt says so, and the writer."""

    operations: Callable[[str], str]
    asked: list[Any] = field(default_factory=list)

    async def __call__(self, path: str, body: Any) -> Any:
        if body is None:
            return {"data": []}
        said = str(body["messages"][-1]["content"])
        if "Summarise its attempt" in said:
            self.asked.append(body)
            return _completion("It counted.")
        if "tried the same task several times" in said:
            return _completion("<experiences>\n1. Count by one.\n</experiences>")
        if "JSON list" in said:
            return _completion(self.operations(said))
        by = 1 if "by one" in str(body["messages"][0]["content"]) else 1 + body["seed"] % 3
        return _completion(f'<tool_call>\n{{"name": "add", "arguments": {{"by": {by}}}}}\n</tool_call>')


def _completion(text: str) -> Any:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


ADD = json.dumps([{"operation": "ADD", "id": None, "content": "Count by one."}])
API = """\
agent: {system: Count., max_turns: 6, format: hermes}
engine: {use: openai, urls: [URL/policy], model: policy, native_tools: false}
credit: grpo
concurrency: 8
train: {iterations: 2, groups: 3, group_size: 6, backend: {use: experiences, model: WRITER}}
eval: {episodes: 5}
"""
WRITER = "{url: URL/writer, model: writer, cache: CACHE, retries: 0}"


def trained(folder: Path, model: Any, sets: Sequence[str] = (), writer: str = WRITER) -> agentrl.Run:
    """Trains with a model behind a real HTTP server, and evaluates the run (`folder/eval`)."""

    async def play() -> Any:
        async with serving(model) as url:
            text = API.replace("WRITER", writer).replace("URL", url).replace("CACHE", str(folder / "cache"))
            recipe = write(folder / "counting", text)
            run = await asyncio.to_thread(agentrl.train, str(recipe), overrides=sets, out=folder / "run", reporters=())
            await asyncio.to_thread(agentrl.eval, folder / "run", 4, out=folder / "eval", reporters=())
            return run

    return asyncio.run(play())  # type: ignore[no-any-return]


def prompts(run: agentrl.Run) -> list[list[str]]:
    """The system messages of each iteration's episodes."""
    return [
        sorted({str(each.prompt[0]["content"]) for each in run.whole_episodes(split="train", iteration=k)})
        for k in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "writer",
    [WRITER, WRITER.replace("retries: 0", "votes: 2"), "null"],
    ids=["another model", "another model, asked twice", "the policy itself"],
)
def test_a_policy_behind_an_api_learns_by_its_prompt_alone(writer: str, tmp_path: Path) -> None:
    model = Model(lambda said: ADD)
    run = trained(tmp_path, model, writer=writer)
    lines = [line for line in run.metrics if line["split"] == "train"]
    assert [line["memory_entries"] for line in lines] == [1, 1]
    assert lines[0]["reward"] < lines[1]["reward"] == 1
    assert [line["staleness_max"] for line in lines] == [0, 0]
    remembered = "Count.\n\nExperiences of earlier episodes. Read them before you act:\n[G0] Count by one."
    assert prompts(run) == [["Count."], [remembered]]
    evaluated = agentrl.open_run(tmp_path / "eval")
    assert evaluated.metrics[-1]["reward"] == 1
    assert {each.prompt[0]["content"] for each in evaluated.whole_episodes()} == {remembered}
    assert all("tools" not in each for each in model.asked)


@pytest.mark.slow
def test_only_groups_with_different_rewards_are_compared(tmp_path: Path) -> None:
    model = Model(lambda said: ADD)
    trained(tmp_path, model, ["agent.system=Count by one.", "train.iterations=1"])
    assert model.asked == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    ["I would add an entry.", json.dumps([{"operation": "UPDATE", "id": "G9", "content": "Count."}])],
    ids=["no JSON", "an unknown id"],
)
def test_what_the_writer_says_wrongly_is_skipped_and_counted(reply: str, tmp_path: Path) -> None:
    run = trained(tmp_path, Model(lambda said: reply))
    lines = [line for line in run.metrics if line["split"] == "train"]
    assert all(line["memory_skipped"] > 0 and line["memory_entries"] == 0 for line in lines)


@pytest.mark.slow
def test_a_dead_writer_is_a_clear_error(tmp_path: Path) -> None:
    model = Model(lambda said: ADD)

    async def dead(path: str, body: Any) -> Any:
        return status(500) if path.startswith("/writer") else await model(path, body)

    with pytest.raises(TrainError, match="the model that writes the memory does not answer") as error:
        trained(tmp_path, dead)
    assert "continues from the last checkpoint" in str(error.value)


def test_a_missing_key_is_found_before_the_first_episode(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    keyed = f"{{url: '{nowhere}', model: m, api_key_env: NO_SUCH_KEY}}"
    recipe = write(tmp_path / "counting", API.replace("WRITER", keyed))
    sets = [f"engine.urls=['{nowhere}']"]
    with pytest.raises(AgentRLError, match="the environment has no NO_SUCH_KEY"):
        agentrl.train(str(recipe), overrides=sets, out=tmp_path / "run", reporters=())


LOCAL = TINY.replace("warm_start: {script: hasty, episodes: 8, steps: 4, batch: 8, lr: 3.0e-3}\n", "").replace(
    "max_context: 128", "max_context: 4096"
)
STAGES = """\
stages:
- {name: imitate, sft: {script: hasty, episodes: 8, steps: 4, batch: 8, lr: 3.0e-3, train: {backend: local}}}
- {name: remember, rl: {}}
eval: {episodes: 4}
"""


def remembering(folder: Path, more: str = "") -> str:
    """A recipe whose trainer notes the rewards of each group."""
    recipe = write(folder, LOCAL + STAGES + TRAIN.replace("4}", "4, backend: ./notes.py:Notes}") + more)
    (recipe / "notes.py").write_text(NOTES)
    return str(recipe)


NOTES = """
from agentrl.training.memory.trainer import MemoryTrainer
from agentrl.types.memory import MemoryChange

class Notes(MemoryTrainer):
    async def write(self, groups, seed):
        return [MemoryChange("add", f"{group.task.id} {group.mean_reward:.2f}") for group in groups]
"""


@pytest.mark.slow
def test_weights_stay_and_a_resumed_run_has_the_same_memory(tmp_path: Path) -> None:
    recipe = remembering(tmp_path / "counting")
    agentrl.train(recipe, out=tmp_path / "whole", reporters=())
    agentrl.train(recipe, overrides=["train.iterations=1"], out=tmp_path / "halves", reporters=())
    agentrl.train(recipe, out=tmp_path / "halves", reporters=())
    halves, whole = (metrics(tmp_path / name) for name in ("halves", "whole"))
    assert [line for line in halves if line["split"] == "train"] == [line for line in whole if line["split"] == "train"]
    folders = sorted((tmp_path / "halves/checkpoints").glob("*"))
    memories = [TextMemory.load(folder) for folder in folders]
    last = memories[-1]
    assert last is not None
    assert len(last.entries) == 6
    assert last == TextMemory.load(sorted((tmp_path / "whole/checkpoints").glob("*"))[-1])
    first, *others = [load_file(folder / "model.safetensors") for folder in folders]
    assert all((each[name] == first[name]).all() for each in others for name in first)
    assert (folders[-1] / "model.safetensors").stat().st_nlink > 1
    said = RunDir.read(tmp_path / "halves").episodes(split="eval", iteration=2)
    assert all("[G5]" in str(each.prompt[0]["content"]) for each in said)


@pytest.mark.slow
def test_the_memory_reaches_workers(tmp_path: Path) -> None:
    recipe = remembering(tmp_path / "counting")
    sets = ["scale={use: process, rollout_workers: 1}"]
    run = agentrl.train(recipe, overrides=sets, out=tmp_path / "run", reporters=())
    assert run is not None
    episodes = list(run.whole_episodes(split="train", iteration=1))
    assert all("[G2]" in str(each.prompt[0]["content"]) for each in episodes)
    assert {span.version for each in episodes for node in each.nodes for span in node.versions} == {1}


@pytest.mark.slow
def test_a_fork_has_the_memory_of_its_parent(tmp_path: Path) -> None:
    run = agentrl.train(remembering(tmp_path / "counting"), out=tmp_path / "run", reporters=())
    assert run is not None
    parent = next(iter(run.whole_episodes(split="train", iteration=1)))
    forked = agentrl.fork(run, parent.id, 0, n=1, out=tmp_path / "fork", reporters=())
    (child,) = forked.whole_episodes()
    assert child.prompt == parent.prompt


@pytest.mark.parametrize(
    ("sets", "why", "place"),
    [
        ("train.loss=reinforce", "does not read train.loss", "train.loss"),
        ("train.record_tokens=1", "does not read train.record_tokens", "train.record_tokens"),
        ("credit=turn_gae; train.critic={}", "does not compute value", "credit.estimator"),
        ("policies={other: {checkpoint: {every: 1}}}", "which earlier selves do not have", "policies"),
        (
            "agent={use: program, command: ['true']}; tools=[]; credit=grpo; stages=[{name: remember, rl: {}}]",
            "a program makes its own",
            "agent",
        ),
    ],
)
def test_what_no_memory_reads_is_refused(sets: str, why: str, place: str, tmp_path: Path) -> None:
    recipe = remembering(tmp_path / "counting")
    plan(load_recipe(recipe))
    with pytest.raises(AgentRLError, match=why) as error:
        plan(load_recipe(recipe, sets.split("; ")))
    assert str(error.value.place).endswith(place)


def test_a_stage_that_would_forget_the_memory_is_refused(tmp_path: Path) -> None:
    recipe = remembering(tmp_path / "counting")
    text = Path(recipe, "recipe.yaml").read_text()
    more = "- {name: forget, rl: {train: {backend: local}}}\neval:"
    Path(recipe, "recipe.yaml").write_text(text.replace("eval:", more))
    with pytest.raises(AgentRLError, match="does not carry on"):
        plan(load_recipe(recipe))
