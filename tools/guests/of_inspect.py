"""inspect_ai tasks: unchanged dataset, solver and scorer, with the policy as the model.

SPEC: task (`inspect_evals/NAME`, or `file.py@name`), args (of the task), metric (key of a score with several numbers),
roles (models of its roles: `{grader: openai/gpt-4o-mini}`; `policy` is the policy).
"""

from __future__ import annotations

import importlib
import math
import os
import random
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn

from guest import Model, Played, Row, Spec, Unusable, share, text_of

share("inspect_ai._eval.loader", "inspect_ai._eval.eval", "inspect_ai.model", "openai.resources.chat", "numpy.random")


def tasks(spec: Spec) -> Iterator[Row]:
    """Yields the samples of the task's data set."""
    for index, sample in enumerate(_task(spec).dataset):
        said = sample.input if isinstance(sample.input, str) else "\n\n".join(each.text for each in sample.input)
        target = sample.target if isinstance(sample.target, str) else list(sample.target)
        id = _id(sample, index)
        yield {"id": f"{_name(spec)}-{id}", "instruction": said, "data": {"answer": target, "sample": id}}


def play(spec: Spec, index: int, model: Model) -> Played:
    """Evaluates one sample; returns the value of its first score."""
    from inspect_ai import eval as evaluate

    task = _task(spec)
    id = _id(task.dataset[index], index)
    task.dataset = task.dataset[index : index + 1]  # not by id, which inspect_ai treats as a pattern
    random.seed()  # reseed for each episode
    with tempfile.TemporaryDirectory() as logs:
        (log,) = evaluate(
            task,
            model=POLICY,
            model_roles=_roles(spec, task),
            log_dir=logs,
            display="none",
            epochs=1,
            log_level="error",
            max_retries=0,
            fail_on_error=False,
            max_connections=1,
            log_samples=True,
        )
        if not log.samples:  # samples are loaded from the log lazily
            raise Unusable(f"{spec['task']}, sample {id}: {log.error.message if log.error else log.status}")
        (played,) = log.samples
        if not played.scores:
            raise Unusable(f"{spec['task']}, sample {id}: {played.error.message if played.error else 'no score'}")
        return {"reward": _reward(spec, *next(iter(played.scores.items())))}, text_of(played.output.completion)


POLICY = "openai-api/agentrl/policy"
"""Name of the policy in inspect_ai: at AGENTRL_BASE_URL, with AGENTRL_API_KEY."""


def _roles(spec: Spec, task: Any) -> dict[str, Any]:
    """Returns the models of the task's roles. Requires a named grader: by default the policy would grade itself."""
    from inspect_ai.model import get_model

    def nobody(*_: object) -> NoReturn:
        raise Unusable(f"{spec['task']} asks a grader: name one, spec: {{roles: {{grader: openai/gpt-4o-mini}}}}")

    named = {role: POLICY if name == "policy" else name for role, name in spec.get("roles", {}).items()}
    return {"grader": get_model("mockllm/grader", custom_outputs=nobody), **(task.model_roles or {}), **named}


def _reward(spec: Spec, name: str, score: Any) -> float:
    """Converts a score to a number."""
    from inspect_ai.scorer import value_to_float

    value = score.value
    if isinstance(value, dict):
        if spec.get("metric") not in value and len(value) != 1:
            raise Unusable(f"the score {name} holds {', '.join(value)}: give spec.metric")
        value = value[spec["metric"]] if spec.get("metric") in value else next(iter(value.values()))
    reward = math.nan if isinstance(value, list) else float(value_to_float()(value))
    if not math.isfinite(reward):
        raise Unusable(f"the score {name} is {value}, which is no reward: {score.explanation or 'nothing says why'}")
    return reward


def _task(spec: Spec) -> Any:
    from inspect_ai._eval.loader import load_tasks
    from inspect_ai._util.error import PrerequisiteError
    from inspect_ai.dataset import MemoryDataset

    if "task" not in spec:
        raise Unusable("inspect_ai needs spec: {task: inspect_evals/NAME, or file.py@NAME}")
    importlib.import_module("openai")  # required by inspect_ai's provider openai-api
    if spec["task"].startswith("inspect_evals/"):
        importlib.import_module("inspect_evals")
    file = spec["task"].partition("@")[0]
    os.chdir(os.path.dirname(file) or "." if os.path.isfile(file) else ".")  # base folder of the task's data
    _shuffle_alike(MemoryDataset)
    try:
        found = load_tasks([spec["task"]], spec.get("args", {}))
    except (PrerequisiteError, FileNotFoundError, NotImplementedError) as error:
        said = getattr(error, "message", error)
        raise Unusable(f"{spec['task']} cannot be loaded: {said} ({_NAMED})") from None
    if len(found) != 1:
        raise Unusable(f"{spec['task']} names {len(found)} tasks: {_NAMED}")
    return found[0]


def _shuffle_alike(dataset: Any) -> None:
    """Seeds shuffles without a seed, so that samples and choices have the same order in every process."""
    from numpy import random as of_numpy

    random.seed(0)
    of_numpy.seed(0)
    shuffle_choices = dataset.shuffle_choices
    dataset.shuffle_choices = lambda self, seed=None: shuffle_choices(self, 0 if seed is None else seed)


_NAMED = "give inspect_evals/NAME, or file.py@NAME"


def _id(sample: Any, index: int) -> Any:
    """Returns the id of a sample; by default its number, from 1."""
    return index + 1 if sample.id is None else sample.id


def _name(spec: Spec) -> str:
    return str(spec["task"]).rpartition("@")[2].rpartition("/")[2]
