"""Experiment trackers, on what they wrote."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.loader import load_recipe
from agentrl.reporters import relay
from agentrl.reporters.registry import trackers
from agentrl.reporters.reporting import reporting
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError, MissingExtra, RecipeError
from agentrl.types.reporter import Reporter
from tests.command import agentrl
from tests.commands.conftest import counting, trainable
from tests.reporters import written
from tests.sound import assert_sound
from tests.store.make import make_episode

__all__ = ["counting", "trainable"]

USERS_OWN = """
import json
from agentrl.types.reporter import Reporter
from agentrl.reporters.tracker import Tracker

class Diary(Reporter):
    def __init__(self, file): self.file = file
    def write(self, **what):
        with open(self.file, "a") as file: file.write(json.dumps(what) + "\\n")
    def started(self, run): self.write(started=run.name)
    def episode(self, episode): self.write(episode=episode.id)
    def metrics(self, line): self.write(iteration=line["iteration"])
    def ended(self, error): self.write(ended=type(error).__name__)

class Away(Tracker):
    def open(self, run, id): return id or "7"
    def log(self, step, values):
        if step > 1: raise ConnectionError("the server is\\naway")

class Half(Tracker):
    def open(self, run, id): return "7"

class Refusing(Tracker):
    def open(self, run, id): raise ConnectionError("no such host")
    def log(self, step, values): ...
"""


def line(iteration: int, split: str = "train", **values: Any) -> dict[str, Any]:
    return {"iteration": iteration, "split": split, **values}


def report(recipe_path: Path, run: Path, track: str, *lines: dict[str, Any], store: bool = True) -> None:
    """A run of a process: begun or continued, with these metrics."""
    recipe = load_recipe(str(recipe_path), [f"track={track}"])
    info = {"command": "train", "recipe": json.loads(recipe.model_dump_json())}
    found = trackers(recipe.track, recipe.base)
    with (
        RunDir.open(run) if (run / "run.json").exists() else RunDir.create(run, info) as directory,
        reporting(directory, *found) as reporter,
    ):
        for each in lines:
            if store:
                directory.add_metrics(each)
            reporter.metrics(each)


@pytest.mark.slow
def test_a_training_and_its_continuation_are_one_run_of_every_tracker(
    trainable: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = trainable.parent
    monkeypatch.setenv("TRACKIO_DIR", str(here / "trackio"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with (trainable / "recipe.yaml").open("a") as file:
        file.write("track: [tensorboard, {wandb: {project: shop, tags: [a]}}, mlflow, trackio]\n")
    for iterations in (1, 2):
        said = agentrl("train", "counting", "--out", "run", "--set", f"train.iterations={iterations}", cwd=here)
        assert "rackio" not in said.stdout
        assert "wandb" not in said.stdout
        assert said.stderr == ""
    run = here / "run"
    with RunDir.read(run) as reader:
        lines, id = reader.metrics(), reader.id
    success = [(m["iteration"], pytest.approx(m["success"])) for m in lines if m["split"] == "train"]
    evaluated = [(m["iteration"], pytest.approx(m["success"])) for m in lines if m["split"] == "eval"]
    assert [step for step, _ in success] == [1, 2]
    assert [step for step, _ in evaluated] == [0, 1, 2]
    for curves in (
        written.tensorboard(run),
        written.wandb(run),
        written.mlflow(run),
        written.trackio(here / "trackio", "counting"),
    ):
        assert curves["success"] == success
        assert curves["eval/success"] == evaluated
        assert {"loss", "grad_norm", "rollout_s", "eval/turns"} < curves.keys()
        assert "split" not in curves
    headers = [record.run for file in written.wandb_files(run) for record in written.wandb_records(file)
               if record.HasField("run")]  # fmt: skip
    assert {header.run_id for header in headers} == {id}
    assert {header.project for header in headers} == {"shop"}
    config = {item.key: json.loads(item.value_json) for item in headers[0].config.update}
    assert config["train"]["lr"] == 1e-3
    params = dict(written._rows(run / "mlflow.db", "SELECT key, value FROM params"))
    assert params["train.lr"] == "0.001"
    assert written._rows(run / "mlflow.db", "SELECT status FROM runs") == [("FINISHED",)]
    names = written._rows(here / "trackio/counting.db", "SELECT DISTINCT run_id FROM metrics")
    assert len(names) == 1
    assert not (here / "mlruns").exists()
    assert not (here / "wandb").exists()
    assert_sound(here / "run")


def test_what_a_tracker_lacks_is_sent_when_the_run_continues(counting: Path, tmp_path: Path) -> None:
    """What a tracker that is new, or was away, or that a kill cut off, has missed; and nothing twice."""
    run = tmp_path / "run"
    report(counting, run, "[]", line(1, loss=3.0))
    report(counting, run, "[tensorboard]", line(0, "eval", loss=9.0), line(2, loss=2.0))
    report(counting, run, "[tensorboard]", line(2, loss=2.0), store=False)  # an update again, after a kill
    report(counting, run, "[tensorboard]", line(3, loss=1.0, note=None, deep={"a": 1}, worse=float("nan")))
    assert written.tensorboard(run) == {
        "loss": [(1, 3.0), (2, 2.0), (3, 1.0)],
        "eval/loss": [(0, 9.0)],
        "deep/a": [(3, 1.0)],
    }


def test_a_tracker_that_fails_in_the_middle_is_one_warning(
    counting: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (counting / "own.py").write_text(USERS_OWN)
    report(counting, tmp_path / "run", "[./own.py:Away]", *(line(k, loss=1.0) for k in range(1, 5)))
    assert [record.getMessage() for record in caplog.records] == [
        "track.0 (./own.py:Away) failed, and the run goes on: ConnectionError: the server is away"
    ]
    state = json.loads((tmp_path / "run/trackers/own-py-Away.json").read_text())
    assert state == {"id": "7", "sent": {"train": [1]}}


def test_a_tracker_that_hangs_does_not_hold_up_the_end(
    counting: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from agentrl.reporters.tensorboard import TensorBoard

    never = threading.Event()
    monkeypatch.setattr(relay, "CLOSE_S", 0.05)
    monkeypatch.setattr(TensorBoard, "log", lambda self, step, values: never.wait())
    report(counting, tmp_path / "run", "[tensorboard]", line(1, loss=1.0))
    never.set()
    (record,) = caplog.records
    assert "not done 0.05 s after the end" in record.getMessage()


def test_a_tracker_that_cannot_begin_is_an_error_and_later_a_warning(
    counting: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (counting / "own.py").write_text(USERS_OWN)
    with pytest.raises(AgentRLError, match=r"track.0 \(./own.py:Refusing\): .*no such host\n  -> .*track=\[\]"):
        report(counting, tmp_path / "run", "[./own.py:Refusing]")
    with RunDir.open(tmp_path / "run") as run:
        run.add(make_episode("e1"))
    report(counting, tmp_path / "run", "[./own.py:Refusing]", line(1, loss=1.0))
    assert [record.getMessage() for record in caplog.records] == [
        "track.0 (./own.py:Refusing) failed, and the run goes on: ConnectionError: no such host"
    ]


@pytest.mark.parametrize(
    ("package", "name"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow"), ("trackio", "trackio"),
     ("sqlalchemy", "mlflow")],
)  # fmt: skip
def test_a_missing_package_is_named_before_anything_runs(
    counting: Path,
    package: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for known in [known for known in sys.modules if known.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as refused:
        trackers(load_recipe(str(counting), [f"track=[{name}]"]).track, counting)
    assert str(refused.value) == (f"track.0: {package} is not installed\n  -> pip install 'agentrl-framework[{name}]'")


@pytest.mark.parametrize(
    ("track", "said"),
    [
        ("[wandbb]", r"track.0: there is no tracker 'wandbb'\n  -> did you mean 'wandb'"),
        (
            "[{wandb: {projct: x}}]",
            r"track.0.projct: wandb has no setting 'projct'\n  .*'project'",
        ),
        ("[{wandb: {mode: shared}}]", r"track.0.mode: .*'shared'"),
        ("[./task.py:Counter]", r"track.0: .*a class of the kind Tool .*not a Tracker or another Reporter"),
        ("[./own.py:Half]", r"track.0: ./own.py:Half lacks the method log"),
        ("[./own.py:Diary]", r"track.0.file: ./own.py:Diary needs the setting 'file'"),
    ],
)
def test_a_wrong_entry_is_named_by_recipe_check(counting: Path, track: str, said: str) -> None:
    from agentrl.api.recipe_check import check

    (counting / "own.py").write_text(USERS_OWN)
    with pytest.raises(RecipeError, match=said):
        check(str(counting), [f"track={track}"])


def test_a_reporter_of_the_users_own_is_told_every_event(counting: Path, tmp_path: Path) -> None:
    (counting / "own.py").write_text(USERS_OWN)
    recipe = load_recipe(str(counting), [f"track=[{{./own.py:Diary: {{file: {tmp_path}/diary}}}}]"])
    with (
        RunDir.create(tmp_path / "run", {"command": "train", "recipe": {"name": recipe.name}}) as run,
        pytest.raises(KeyError),
        reporting(run, Reporter(), *trackers(recipe.track, recipe.base)) as reporter,
    ):
        reporter.episode(make_episode("e1"))
        reporter.metrics(line(1))
        raise KeyError("stop")
    told = [json.loads(text) for text in (tmp_path / "diary").read_text().splitlines()]
    assert told == [{"started": "counting"}, {"episode": "e1"}, {"iteration": 1}, {"ended": "KeyError"}]


@pytest.mark.slow
def test_tracks_may_change_when_a_run_continues_and_the_environment_says_where(
    counting: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "all").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to make
    report(counting, tmp_path / "run", "[mlflow]", line(1, loss=0.5))
    assert not (tmp_path / "run/mlflow.db").exists()
    (values,) = (tmp_path / "all").glob("*/*/metrics/loss")
    assert values.read_text().split()[1:] == ["0.5", "1"]
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"]
