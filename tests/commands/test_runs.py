"""What a command finds where it is to write: nothing, its own run, another one, or something else."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from agentrl.api.eval import evaluated
from agentrl.api.run_dirs import begin_run
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import recipe_from_run
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError, StoreError
from tests.command import Started
from tests.counting import CODE, HELD
from tests.store.make import make_episode
from tests.waiting import until


def start(counting: Path, path: Path, *overrides: str, command: str = "train") -> RunDir:
    return begin_run(path, load_recipe(str(counting), overrides), command)


def refused(counting: Path, path: Path, *overrides: str) -> str:
    with pytest.raises(StoreError) as caught:
        start(counting, path, *overrides)
    return str(caught.value)


def test_a_folder_with_other_files_is_refused(counting: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")
    said = refused(counting, tmp_path / "home")
    assert "contains files but no run" in said
    assert f"--out {tmp_path / 'home-2'}" in said
    assert "is a file" in refused(counting, tmp_path / "home" / "thesis.tex")
    assert [child.name for child in (tmp_path / "home").iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".run.json.17.4").write_text("{")  # a start that was killed
    start(counting, tmp_path / "empty").close()


def test_changed_code_is_noted_and_not_refused(
    counting: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start(counting, tmp_path / "run") as run:
        run.add(make_episode("a", reward=1.0))
    start(counting, tmp_path / "run").close()
    assert not caplog.records, "nothing changed"
    with (counting / "task.py").open("a") as file:
        file.write("# other rewards\n")
    (counting / "helper.py").write_text("")
    start(counting, tmp_path / "run").close()
    noted = f"helper.py, task.py changed since {tmp_path / 'run'} began: the run will mix episodes of both"
    assert [record.getMessage() for record in caplog.records] == [noted]


@pytest.mark.parametrize(("source", "named"), [("./train.jsonl", "train.jsonl"), ("rows", "rows")])
def test_changed_data_is_noted_and_not_refused(
    counting: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, named: str
) -> None:
    tasks = f"tasks={{jsonl: {source}, prompt: '{{question}}'}}"
    data = counting / (source if source.endswith(".jsonl") else f"{source}/train.jsonl")
    data.parent.mkdir(exist_ok=True)
    data.write_text('{"question": "1 + 1"}\n{"question": "1 + 2"}\n')
    with start(counting, tmp_path / "run", tasks) as run:
        run.add(make_episode("a", reward=1.0))
    start(counting, tmp_path / "run", tasks).close()
    assert not caplog.records, "nothing changed"
    data.write_text('{"question": "1 + 2"}\n')
    start(counting, tmp_path / "run", tasks).close()
    noted = f"{named} changed since {tmp_path / 'run'} began: the run will mix episodes of both"
    assert [record.getMessage() for record in caplog.records] == [noted]


def test_a_run_without_data_takes_the_recipe_as_it_was_mended(
    counting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(counting, tmp_path / "run") as run:
        run.add(make_episode("a", status="user_error"))
    (counting / "task.py").write_text((counting / "task.py").read_text() + "\n")
    with start(counting, tmp_path / "run", "seed=5") as run:
        assert run.info["recipe"]["seed"] == 5
        run.add(make_episode("b", reward=1.0))
    assert "seed: 5 -> 0" in refused(counting, tmp_path / "run")
    assert capsys.readouterr().err == ""


def test_a_run_that_takes_another_recipe_measures_from_the_start(counting: Path, tmp_path: Path) -> None:
    """A stage on a file that was interrupted before its first checkpoint has lines of metrics, and nothing to go on
    with."""
    sent = tmp_path / "run" / "trackers" / "tensorboard.json"
    with start(counting, tmp_path / "run") as run:
        run.add_metrics({"stage": "format", "split": "sft", "iteration": 10, "loss": 3.0})
        sent.parent.mkdir()
        sent.write_text('{"id": "7", "sent": {"format": [10]}}')
        first = run.id
    with start(counting, tmp_path / "run", "concurrency=7") as run:
        assert (run.id, len(run.metrics()), sent.exists()) == (first, 1, True), "it goes on"
    with start(counting, tmp_path / "run", "seed=5") as run:
        assert (len(run.metrics()), sent.exists()) == (0, False)
        assert run.id != first, "trackers would take it for the run that they know"


def test_a_run_of_another_recipe_says_what_can_be_done(counting: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with start(counting, path) as run:
        run.add(make_episode("a", reward=1.0))
    anew = f"-> to start a new run: --out {path}-2 (this run is kept); to continue it: the original command"
    said = refused(counting, path, "seed=5")
    assert said.endswith(anew)
    assert f"agentrl rescore {path} --recipe RECIPE scores" in refused(counting, path, "rewards.exact.weight=2")
    assert f"agentrl credit {path} --estimator NAME" in refused(counting, path, "credit.use=rloo")
    newest = path / "checkpoints" / "it-00002"
    newest.mkdir(parents=True)
    (newest / "state.json").write_text("{}")
    assert f"from its newest weights: --set 'model={{path: {newest}}}'" in refused(counting, path, "seed=5")


def test_what_bounds_the_memory_of_a_step_may_change(counting: Path, tmp_path: Path) -> None:
    with start(counting, tmp_path / "run", "train.iterations=3") as run:
        run.add(make_episode("a", reward=1.0))
    smaller = ("train.token_budget=512", "train.logits_mb=64", "train.activation_checkpointing=true")
    start(counting, tmp_path / "run", "train.iterations=3", *smaller).close()
    assert "train.precision" in refused(counting, tmp_path / "run", "train.iterations=3", "train.precision=bfloat16")


MOVED = {
    "another host": ["engine.urls=[http://b:8000]"],
    "one more server": ["engine.urls=[http://a:8000, http://b:8000]"],
    "patience": ["engine.timeout_s=900", "engine.retries=9", "limits.generate_s=1200"],
    "servers of our own": ["engine.urls=[]", "engine.replicas=4", "engine.python=/venv/bin/python", "engine.args=[-x]"],
    "how weights travel": ["engine.weights_dir=/shared", "engine.transfer=nccl", "engine.tensor_parallel=2"],
    "device and pool": [
        "model.device=cpu",
        "sandbox.pool=8",
        "concurrency=7",
        "scale={use: ray, rollout_workers: 2}",
    ],
}


@pytest.mark.parametrize("change", MOVED)
def test_a_run_goes_on_when_its_servers_moved(counting: Path, tmp_path: Path, change: str) -> None:
    before = ("engine={use: vllm, urls: [http://a:8000]}", "model={path: m}")
    with start(counting, tmp_path / "run", *before) as run:
        run.add(make_episode("a", reward=1.0))
    with start(counting, tmp_path / "run", *before, *MOVED[change]) as run:
        assert run.info["recipe"] == json.loads(
            load_recipe(str(counting), [*before, *MOVED[change]]).model_dump_json()
        ), "what is told of the run is what it goes on with"


@pytest.mark.parametrize("keys", ["max_batch=8", "parked_mb=1", "threads=2"])
def test_a_run_goes_on_with_another_size_of_the_torch_engine(counting: Path, tmp_path: Path, keys: str) -> None:
    with start(counting, tmp_path / "run") as run:
        run.add(make_episode("a", reward=1.0))
    start(counting, tmp_path / "run", f"engine.{keys}").close()


def test_a_run_goes_on_when_its_recipe_lies_elsewhere(
    counting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(counting, tmp_path / "run") as run:
        run.add(make_episode("a", reward=1.0))
    moved = shutil.copytree(counting, tmp_path / "mounted" / "counting")
    with start(moved, tmp_path / "run") as run:
        assert recipe_from_run(run.info).base == moved
    assert capsys.readouterr().err == "", "its code is the same"
    assert "seed: 0 -> 5" in refused(moved, tmp_path / "run", "seed=5")


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("seed=5", "it determines tasks, samples and the order of training"),
        ("engine.seeded=true", "the run would mix tokens sampled in different ways"),
        ("sandbox.spec.memory_mb=64", "the run would mix episodes in different sandboxes"),
        ("rewards.exact.weight=2", "the run would mix episodes scored by different rules"),
    ],
)
def test_a_refusal_says_why_the_difference_matters(counting: Path, tmp_path: Path, override: str, why: str) -> None:
    before = ("engine=vllm", "model={path: m}")
    with start(counting, tmp_path / "run", *before) as run:
        run.add(make_episode("a", reward=1.0))
    said = refused(counting, tmp_path / "run", *before, override)
    assert f"differs in recipe.{override.partition('=')[0]}: " in said
    assert why in said


def test_an_evaluation_of_a_run_takes_overrides_but_no_other_model(counting: Path, tmp_path: Path) -> None:
    start(counting, tmp_path / "run", "engine={use: torch, threads: 2}", "model={path: m}").close()
    newest = tmp_path / "run" / "checkpoints" / "it-00002"
    newest.mkdir(parents=True)
    (newest / "state.json").write_text('{"iteration": 2}')
    for what in (tmp_path / "run", newest):
        recipe, iteration = evaluated(str(what), ["sampling.temperature=.5", "engine.threads=1", "eval.episodes=3"])
        assert (recipe.sampling.temperature, recipe.engine.settings["threads"], iteration) == (0.5, 1, 2)
        assert recipe.eval is not None
        assert recipe.eval.episodes == 3
        assert recipe.model is not None
        assert recipe.model.path == str(newest)
        assert recipe.base == counting
    with pytest.raises(RecipeError, match=r"--set sampling.temp=1: sampling.temp: unknown key\n.*temperature"):
        evaluated(str(newest), ["sampling.temp=1"])
    with pytest.raises(RecipeError, match="--set names another model"):
        evaluated(str(newest), ["model.path=other"])


IGNORING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
runpy.run_module("agentrl.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("-m", "agentrl.cli"), ("-c", IGNORING)], ids=["plain", "ignored"])
def test_ctrl_c_ends_with_one_line(counting: Path, command: tuple[str, str]) -> None:
    """Also where whoever started the command ignores SIGINT, as shells do for the background of a script."""
    (counting / "task.py").write_text(CODE + HELD)
    (counting.parent / "hold").touch()
    arguments = ["rollout", "counting", "--script", "oracle", "--n", "3", "--out", "run"]
    process = Started(*command, *arguments, "--set", "tools=[./task.py:Held]", cwd=counting.parent)
    until(lambda: [*counting.parent.glob("run/episodes/*")] or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert process.said()[1] == "stopped; finished work is kept in run: the same command continues\n"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [[], ["--set", "scale.use=process", "--set", "scale.trainer_ranks=2"]])
def test_ctrl_c_does_not_wait_for_the_warm_start(trainable: Path, scale: list[str]) -> None:
    endless = ["--set", "warm_start.steps=1000000", *scale]
    process = Started("-m", "agentrl.cli", "train", "counting", "--out", "run", *endless, cwd=trainable.parent)
    until(lambda: "\nwarm_start sft " in process.said()[0] or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert "stopped; finished work is kept" in process.said()[1]
    assert not (trainable.parent / "run" / "checkpoints" / "it-00000").exists()
