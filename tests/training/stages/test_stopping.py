"""When a stage ends before its last step."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.recipe import Recipe
from agentrl.config.stages import StopSettings
from agentrl.store.run_dir import RunDir
from agentrl.training.stages.record import StageRecord
from agentrl.training.stages.stage import stages_of
from agentrl.training.stages.stopping import missing, reached


def lines(*values: float | None, split: str = "train") -> list[dict]:
    return [{"iteration": k, "split": split, "success": value} for k, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("stop", "values", "said"),
    [
        ({"at_least": 0.5}, (0.1, 0.4), None),
        ({"at_least": 0.5}, (0.1, 0.5), "success is 0.5, at least 0.5"),
        ({"at_least": 0.5}, (0.9, 0.4), None),  # what counts is where it stands
        ({"at_least": 0.5, "window": 2}, (0.2, 0.7), None),
        ({"at_least": 0.5, "window": 2}, (0.2, 0.7, 0.3), "success is 0.5, at least 0.5"),
        ({"at_least": 0.5, "window": 2}, (0.9,), None),  # no two lines yet
        ({"at_most": 0.1}, (0.2, 0.1), "success is 0.1, at most 0.1"),
        ({"patience": 2}, (0.1, 0.3, 0.2), None),
        ({"patience": 2}, (0.1, 0.3, 0.2, 0.3), "success is no better than 2 lines ago"),
        ({"patience": 2}, (0.1, 0.3, 0.2, 0.4), None),
        ({"patience": 1, "better": "lower"}, (0.3, 0.2), None),
        ({"patience": 1, "better": "lower"}, (0.2, 0.3), "success is no better than 1 lines ago"),
        ({"at_least": 0.5}, (0.6, None), "success is 0.6, at least 0.5"),  # nothing was scored
        ({"at_least": 0.5}, (), None),
    ],
)
def test_it_stops_where_it_says(stop: dict, values: tuple, said: str | None) -> None:
    assert reached(StopSettings(metric="success", **stop), lines(*values)) == said


def test_evaluations_are_asked_by_their_own_name() -> None:
    both = [*lines(0.9), *lines(0.2, split="eval")]
    assert reached(StopSettings(metric="success", at_least=0.5), both) is not None
    assert reached(StopSettings(metric="eval/success", at_least=0.5), both) is None
    assert reached(None, both) is None


@pytest.mark.parametrize(
    ("metric", "split", "said"),
    [
        ("succes", "train", "stop.metric: the train line of iteration 1 has no 'succes'; did you mean 'success'?"),
        ("eval/succes", "eval", "stop.metric: the eval line of iteration 1 has no 'succes'; did you mean 'success'?"),
        ("succes", "eval", None),
        ("success", "train", None),
    ],
)
def test_a_metric_that_no_line_has_is_named(metric: str, split: str, said: str | None) -> None:
    (line,) = lines(0.5, split=split)
    found = missing(StopSettings(metric=metric, at_least=1), line)
    assert found == said if said is None else found is not None and found.startswith(said[:-1])


def test_a_record_warns_once_of_a_metric_that_is_misspelt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = {"stop": {"metric": "succes", "at_least": 1}}
    recipe = Recipe.model_validate({"name": "r", "tasks": "./t.py:many", "rewards": {"x": "./t.py:x"}, "train": train})
    with RunDir.create(tmp_path / "run", {"command": "train"}) as run:
        record = StageRecord(run, stages_of(recipe)[-1])
        for line in lines(0.1, 0.2):
            record.add_line(line)
    (said,) = caplog.messages
    assert said.startswith("stage rl: stop.metric: the train line of iteration 1 has no 'succes'; did you mean")
