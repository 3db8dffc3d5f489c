"""A recipe of three stages, from end to end: killed in each of them, it comes to the same metrics."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.view.curves import learning_curve
from tests import counting
from tests.checkpoint import shared
from tests.command import agentrl, python, sets
from tests.counting import CANARY, RECIPE, write
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

THREE = """\
agent: {format: tags, max_turns: 4, describe_tools: false}
model: {scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 300, max_context: 256}, device: cpu}
engine: {batch_invariant: true}
sampling: {max_tokens: 8}
credit: gigpo
train: {iterations: 3, groups: 3, group_size: 4, minibatch: 6, lr: 1.0e-3}
eval: {episodes: 8}
stages:
  - name: format
    sft: {jsonl: ./format.jsonl, steps: 40, batch: 8, lr: 3.0e-3, metrics_every: 8, checkpoint_every: 10}
  - name: prefer
    preference: {run: ../stored, epochs: 3, batch: 3, lr: 1.0e-3, loss: {dpo: {beta: 0.2}}, metrics_every: 3,
                 checkpoint_every: 4}
  - name: learn
    rl:
"""
metrics = functools.partial(counting.metrics, but_for=CANARY)


def conversation(number: int) -> dict[str, Any]:
    """Counting up in steps of one, as an API for fine-tuning has it."""
    to = number % 5 + 1
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Count to {to}."}]
    for at in range(1, to + 1):
        call = {"type": "function", "function": {"name": "add", "arguments": json.dumps({"by": 1})}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "name": "add", "content": str(at)})
    return {"messages": messages}


def train_three(here: Path) -> None:
    """Makes the folder of the recipe, with a file of conversations; beside it a stored run of a script, and `whole`, a
    training of all three stages."""
    folder = write(here / "counting")
    (folder / "format.jsonl").write_text("\n".join(json.dumps(conversation(k)) for k in range(32)))
    arguments = ("--n", "40", "--group-size", "4", "--script", "hasty", "--out", "stored")
    agentrl("rollout", "counting", *arguments, "--set", "agent.format=tags", cwd=here)
    (folder / "recipe.yaml").write_text(RECIPE + THREE)
    agentrl("train", "counting", "--out", "whole", cwd=here)


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory, "stages", train_three)


@pytest.fixture
def staged(three: Path, tmp_path: Path) -> Path:
    """A copy of the folder of the recipe, the stored run beside it, and the training."""
    return shutil.copytree(three, tmp_path / "stages") / "counting"


def killed(here: Path, deaths: list[str], *arguments: str) -> list[str]:
    """Runs a command, killed after each of the calls (`POINT:CALL` of lives.py), and then to its end. Returns the
    newest checkpoint at each death."""
    done = python("-m", "tests.commands.lives", ",".join(deaths), *arguments, cwd=here)
    return [line.split()[-1] for line in done.stdout.splitlines()]


def test_killed_in_each_stage_it_comes_to_the_same_metrics(staged: Path) -> None:
    here = staged.parent
    expected = metrics(here / "whole")
    assert [(m["stage"], m["split"], m["iteration"]) for m in expected] == [
        *(("format", "sft", k) for k in (8, 16, 24, 32, 40)),
        *(("prefer", "preference", k) for k in range(3, 13, 3)),
        ("learn", "eval", 0), *(("learn", "train", k) for k in (1, 2, 3)), ("learn", "eval", 3),
    ]  # fmt: skip
    deaths = [
        ("optimiser step:13", "00-format-000010"),  # between a checkpoint and the next line of metrics
        ("metrics:1", "00-format-000010"),  # the line of step 16 is there, its checkpoint is not
        ("checkpoint write:5", "00-format-000010"),
        ("optimiser step:35", "01-prefer-000004"),  # over the end of the first stage
        ("checkpoint write:6", "01-prefer-000004"),
        ("metrics:2", "01-prefer-000008"),
        ("rollout:9", "02-learn-000000"),
        ("metrics:2", "02-learn-000001"),  # the line of the second iteration is there, its checkpoint is not
        ("rollout:5", "02-learn-000002"),
    ]
    stood = killed(here, [death for death, _ in deaths], "train", "counting", "--out", "killed")
    assert stood == [newest for _, newest in deaths]
    assert metrics(here / "killed") == expected
    assert_sound(here / "killed")
    with RunDir.read(here / "killed") as run:
        assert run.info["finished"]
        assert {episode.id.partition("/")[0] for episode in run.episodes()} == {"learn"}
    first, second = ([m for m in expected if m["stage"] == name] for name in ("format", "prefer"))
    assert first[-1]["loss"] < 0.5 * first[0]["loss"]
    assert second[-1]["accuracy"] > second[0]["accuracy"]


def test_what_is_shown_names_the_stages(staged: Path) -> None:
    shown = agentrl("show", "whole", cwd=staged.parent).stdout
    assert "stage format: sft, 40 steps  loss" in shown
    assert "stage prefer: preference, 12 steps  accuracy" in shown
    assert "stage learn: rl, 3 iterations  success" in shown
    assert "learn/train: 36 episodes" in shown
    agentrl("view", "whole", "--export", "page.html", cwd=staged.parent)
    page = (staged.parent / "page.html").read_text()
    assert '"learn/eval/success":' in page
    assert '"format/loss":' in page
    with RunDir.read(staged.parent / "whole") as run:
        learning_curve(run.metrics(), staged.parent / "curve.png", "counting")
    assert (staged.parent / "curve.png").stat().st_size > 1000


def test_the_newest_checkpoint_is_evaluated_as_its_stage_sees_the_recipe(staged: Path) -> None:
    printed = agentrl("eval", "whole", "--n", "6", "--json", "--out", "evaluated", cwd=staged.parent).stdout
    found = json.loads(printed)
    assert (found["episodes"], found["failed"]) == (6, 0)


def test_a_stage_is_added_and_none_is_changed(staged: Path) -> None:
    here = staged.parent
    shutil.copytree(here / "whole", here / "longer")
    further = "- {name: more, sft: {run: learn, steps: 3, metrics_every: 1}}\n"
    (staged / "recipe.yaml").write_text(RECIPE + THREE + "  " + further)
    agentrl("train", "counting", "--out", "longer", cwd=here)
    refused = agentrl("train", "counting", "--out", "longer", *sets("stages.0.sft.steps=41"), cwd=here, ok=False)
    added = metrics(here / "longer")[len(metrics(here / "whole")) :]
    assert [(m["stage"], m["iteration"]) for m in added] == [("more", 1), ("more", 2), ("more", 3)]
    assert "recipe.stages.0.sft.steps: 40 -> 41" in refused.stderr
    assert "the run would mix stages of different trainings" in refused.stderr


def trained_model(staged: Path) -> str:
    return f"model={{path: {staged.parent}/whole/checkpoints/02-learn-000003, device: cpu}}"


def test_preferences_as_the_first_stage_keep_their_reference(staged: Path) -> None:
    """The policy that the recipe names: it is not there any more when the run goes on, but for a checkpoint of it."""
    here = staged.parent
    only = (
        "stages=[{name: prefer, preference: {run: ../stored, epochs: 4, batch: 3, lr: 1.0e-3, metrics_every: 2, "
        "checkpoint_every: 2}}]"
    )
    arguments = ("train", "counting", *sets(trained_model(staged), only))
    agentrl(*arguments, "--out", "first", cwd=here)
    stood = killed(here, ["optimiser step:8"], *arguments, "--out", "first-killed")
    assert stood == ["00-prefer-000006"]
    assert metrics(here / "first-killed") == metrics(here / "first")
    kept = {path.name for path in (here / "first" / "checkpoints").iterdir()}
    assert "00-prefer-000000" in kept


def test_adapters_go_on_while_their_settings_stay(staged: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    here = staged.parent
    stages = (
        "stages=[{name: a, sft: {jsonl: ./format.jsonl, steps: 4, lr: 1.0e-3, train: {lora: {rank: 2}}}}, "
        "{name: b, sft: {jsonl: ./format.jsonl, steps: 4, lr: 1.0e-3, checkpoint_every: 2, train: {lora: {rank: 2}}}}, "
        "{name: c, rl: {train: {iterations: 1, lora: {rank: 4}}}}]"
    )
    arguments = ("train", "counting", *sets(trained_model(staged), stages))
    agentrl(*arguments, "--out", "lora", cwd=here)
    killed(here, ["optimiser step:7"], *arguments, "--out", "lora-killed")
    assert metrics(here / "lora-killed") == metrics(here / "lora")
    checkpoints = here / "lora" / "checkpoints"

    def merged(base: Path, name: str) -> dict[str, torch.Tensor]:
        model = AutoModelForCausalLM.from_pretrained(base)
        return PeftModel.from_pretrained(model, checkpoints / name / "adapter").merge_and_unload().state_dict()

    # The second stage's adapters are on the recipe's model, the third's on what the second came to.
    for base, name in (
        (here / "whole" / "checkpoints" / "02-learn-000003", "01-b-000004"),
        (checkpoints / "01-b-000004", "02-c-000001"),
    ):
        theirs = AutoModelForCausalLM.from_pretrained(checkpoints / name).state_dict()
        ours = merged(base, name)
        assert all(torch.allclose(ours[key], theirs[key], atol=1e-6) for key in theirs)


def test_a_stage_ends_where_it_has_reached_enough(staged: Path) -> None:
    here = staged.parent
    early = sets(
        "stages.0.sft.stop={metric: loss, at_most: 3.5}", "stages.0.sft.metrics_every=2",
        "stages.2.rl.train.stop={metric: reward, at_least: 0}",
    )  # fmt: skip
    printed = agentrl("train", "counting", "--out", "early", *early, cwd=here).stdout
    found = [(m["stage"], m["split"], m["iteration"]) for m in metrics(here / "early") if m["stage"] != "prefer"]
    last = max(iteration for stage, _, iteration in found if stage == "format")
    assert last < 40
    assert f"stage format ended after {last} steps: loss is" in printed
    assert found[-3:] == [("learn", "eval", 0), ("learn", "train", 1), ("learn", "eval", 1)]


def test_a_stage_that_refers_to_a_later_one_is_named_before_anything_runs(staged: Path) -> None:
    for command in (["recipe", "check", "counting"], ["train", "counting", "--out", "never"]):
        done = agentrl(*command, "--set", "stages.0.sft={run: learn}", cwd=staged.parent, ok=False)
        assert done.returncode == 1
        assert "stages.0.sft.run: stage 'learn' is a later one (the third): it has no episodes yet" in done.stderr
        assert "-> earlier stages that play episodes: none; or name a run directory" in done.stderr
    assert not (staged.parent / "never").exists()


def test_the_shipped_recipe_runs_its_four_stages(tmp_path: Path) -> None:
    short = sets(
        "eval.episodes=7", "stages.0.sft={jsonl: ./format.jsonl, steps: 30, lr: 4.0e-3}", "train.group_size=4",
        "train.groups=7", "stages.1.rl.train.iterations=1", "stages.2.preference.epochs=1",
        "stages.3.rl.train={iterations: 1}",
    )  # fmt: skip
    agentrl("train", "staged", "--out", "run", *short, cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        stages = list(dict.fromkeys(line["stage"] for line in run.metrics()))
        assert run.info["finished"]
    assert stages == ["format", "explore", "prefer", "learn"]
    assert_sound(tmp_path / "run")
