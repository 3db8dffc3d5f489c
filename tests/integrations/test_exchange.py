"""Episodes of a run in the formats of other tools: out, and in again as conversations to learn from."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentrl
from agentrl.api.export.episodes import ExportedEpisodes, export_episodes
from agentrl.chat.formats.parser import Parser
from agentrl.config.loader import load_recipe
from agentrl.curriculum.tables import RowSource
from agentrl.integrations.exchange import atif
from agentrl.integrations.exchange.told import Origin, told
from agentrl.rollouts.builder import build
from agentrl.store.run_dir import RunDir
from agentrl.training.stages.data import parser_of
from agentrl.training.stages.files import conversations
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError, StoreError
from tests.counting import CODE, RECIPE
from tests.integrations.guested import GUESTS

SPOKEN = (
    CODE
    + """
def talkative(task, rng):
    yield Say("<think>\\nOne step at a time.\\n</think>\\n\\nI add.", calls=[("add", {"by": 1})])
    yield Say(calls=[("add", {"by": 0}), ("add", {"by": 0})])
    yield Say('<tool_call>\\n{"name": "add", "arguments": {"by"\\n</tool_call>')
    yield Say("<think>\\nThat is all.\\n</think>\\n\\nDone.")

def odd(task, rng):
    yield Say('<tool_call>{"arguments": {"by": 9}, "name": "add"}</tool_call>')
"""
)
ROWS = {"openai": "out.jsonl", "sharegpt": "out.jsonl", "atif": "out"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of each script."""
    folder = tmp_path_factory.mktemp("spoken")
    (folder / "task.py").write_text(SPOKEN)
    scripts = "scripts: {talkative: ./task.py:talkative, odd: ./task.py:odd}"
    own = RECIPE.replace("scripts: {oracle: ./task.py:oracle, hasty: ./task.py:hasty}", scripts)
    (folder / "recipe.yaml").write_text(own + "agent: {system: Count.}\n")
    overrides = {"tasks": {"source": "./task.py:counts", "exclude": {"count0": "short"}}}
    for script in ("talkative", "odd"):
        agentrl.rollout(folder, 2, script=script, out=folder / script, overrides=overrides, reporters=())
    return folder


def episodes(run: Path) -> list[Episode]:
    with RunDir.read(run) as stored:
        return list(stored.episodes())


def parser(run: Path) -> Parser:
    return parser_of(build(load_recipe(str(run.parent))))


def out_and_in(run: Path, to: str, out: Path) -> tuple[ExportedEpisodes, list[SupervisedConversation]]:
    done = export_episodes(run, to, out)
    return done, conversations(RowSource("jsonl", str(out), "sft"), Path(), parser(run))


@pytest.mark.parametrize("to", ROWS)
def test_a_run_goes_out_and_in_again(run: Path, to: str, tmp_path: Path) -> None:
    done, found = out_and_in(run / "talkative", to, tmp_path / ROWS[to])
    recorded = [SupervisedConversation.of(episode) for episode in episodes(run / "talkative")]
    assert (done.episodes, len(found)) == (2, 2)
    keys = {"role", "content", "name"} - ({"name"} if "names of results" in done.lost else set())
    for again, own in zip(found, recorded, strict=True):
        assert [turn.text for turn in again.turns] == [turn.text for turn in own.turns]
        assert shown(again.opening, keys) == shown(own.opening, keys)
        for turn, before in zip(again.turns, own.turns, strict=True):
            assert shown(turn.observations, keys) == shown(before.observations, keys)
        assert [tool["function"]["name"] for tool in again.tools or ()] == ["add"]
    assert done.changed == {"calls that could not be read, which stay text": 2}
    assert "times" in done.lost


def shown(messages: Any, keys: set[str]) -> list[dict[str, Any]]:
    return [{key: value for key, value in message.items() if key in keys} for message in messages]


def test_a_reply_that_is_written_in_another_way_is_told(run: Path, tmp_path: Path) -> None:
    done, found = out_and_in(run / "odd", "openai", tmp_path / "out.jsonl")
    assert done.changed == {"white space and order within replies": 2}
    assert [call.arguments for call in parser(run / "odd").parse(found[0].turns[0].text, ["add"]).calls] == [{"by": 9}]


def test_a_row_of_openai_has_calls_with_ids_of_their_own(run: Path, tmp_path: Path) -> None:
    export_episodes(run / "talkative", "openai", tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    calls = [call for message in row["messages"] for call in message.get("tool_calls", [])]
    assert [call["id"] for call in calls] == ["call_0_0", "call_1_0", "call_1_1"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"by": 1}, {"by": 0}, {"by": 0}]
    answered = [message["tool_call_id"] for message in row["messages"] if "tool_call_id" in message]
    assert answered == ["call_0_0", "call_1_0", "call_1_1"]
    assert row["messages"][2]["reasoning_content"] == "One step at a time."
    assert row["reward"] == episodes(run / "talkative")[0].reward


def test_a_trajectory_has_the_tokens_that_were_sampled(run: Path, tmp_path: Path) -> None:
    export_episodes(run / "talkative", "atif", tmp_path / "out")
    episode = episodes(run / "talkative")[0]
    (file, _) = sorted((tmp_path / "out").iterdir())
    found = json.loads(file.read_text())
    assert found["schema_version"] == "ATIF-v1.8"
    assert [step["step_id"] for step in found["steps"]] == [*range(1, len(found["steps"]) + 1)]
    agent = [step for step in found["steps"] if step["source"] == "agent"]
    sampled = [episode.nodes[turn.node].token_ids for turn in episode.turns]
    assert [step["metrics"]["completion_token_ids"] for step in agent] == sampled
    called = [{call["tool_call_id"] for call in step.get("tool_calls", [])} for step in agent]
    answered = [{each.get("source_call_id") for each in step.get("observation", {"results": []})["results"]}
                for step in agent]  # fmt: skip
    assert called[:2] == answered[:2]
    assert found["final_metrics"]["extra"]["reward"] == episode.reward


def test_no_trajectory_overwrites_another(run: Path, tmp_path: Path) -> None:
    """Ids of tasks may have slashes, or what stands for them in the name of a file."""
    told_parser, origin = parser(run / "talkative"), Origin("run", "counting", "model", 0.0)
    first, second = episodes(run / "talkative")
    both = [told(msgspec.structs.replace(first, id="a/b#0"), told_parser)]
    both += [told(msgspec.structs.replace(second, id="a_b#0"), told_parser)]
    atif.write(both, tmp_path / "out", origin)
    found = [json.loads(file.read_text())["trajectory_id"] for file in (tmp_path / "out").iterdir()]
    assert sorted(found) == ["a/b#0", "a_b#0"]


@pytest.mark.parametrize("to", ["openai", "atif"])
def test_an_export_that_fails_leaves_nothing(
    run: Path, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> Any:
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="has no episode of eval"):
        export_episodes(run / "talkative", to, tmp_path / "out", split="eval")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("agentrl.api.export.episodes.told", full)
    with pytest.raises(OSError, match="No space left"):
        export_episodes(run / "talkative", to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_log_of_inspect_has_every_episode_as_a_sample(run: Path, tmp_path: Path) -> None:
    export_episodes(run / "talkative", "inspect", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["version"], found["status"], found["eval"]["task"]) == (2, "success", "counting")
    for sample, episode in zip(found["samples"], episodes(run / "talkative"), strict=True):
        assert (sample["id"], sample["epoch"], sample["uuid"]) == (episode.task.id, 1, episode.id)
        assert sample["scores"]["reward"]["value"] == episode.reward
        roles = [message["role"] for message in sample["messages"]]
        assert roles[:3] == ["system", "user", "assistant"]
        assert sample["messages"][2]["content"][0] == {"type": "reasoning", "reasoning": "One step at a time."}


@pytest.mark.family("guests")
def test_inspect_reads_the_log(run: Path, tmp_path: Path) -> None:
    log = tmp_path / "out.json"
    export_episodes(run / "talkative", "inspect", log)
    code = """
import json, sys
from inspect_ai.log import read_eval_log
log = read_eval_log(sys.argv[1])
first = log.samples[0]
print(json.dumps({
    "status": log.status,
    "rewards": [sample.scores["reward"].value for sample in log.samples],
    "calls": [[call.function, call.arguments] for m in first.messages for call in getattr(m, "tool_calls", 0) or []],
    "said": first.output.completion,
    "means": {score.name: score.metrics["mean"].value for score in log.results.scores},
}))
"""
    python = GUESTS / "inspect" / "bin" / "python"
    done = subprocess.run([python, "-c", code, log], capture_output=True, text=True, check=True)
    read = json.loads(done.stdout)
    rewards = [episode.reward for episode in episodes(run / "talkative")]
    assert (read["status"], read["rewards"], read["said"]) == ("success", rewards, "Done.")
    assert read["calls"] == [["add", {"by": 1}], ["add", {"by": 0}], ["add", {"by": 0}]]
    assert read["means"]["reward"] == sum(reward or 0.0 for reward in rewards) / 2


def test_what_cannot_be_exported_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"--to: there is no format 'openia'\n.*openai"):
        export_episodes(run / "odd", "openia", tmp_path / "out")
    with pytest.raises(RecipeError, match=r"--out: there is a .* already"):
        export_episodes(run / "odd", "openai", tmp_path)
