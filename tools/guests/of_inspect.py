"""inspect_ai tasks: dataset, solver and scorer run as they are, with the policy as the model.

SPEC: task (`inspect_evals/NAME`, or `file.py@name`), args (of the task), metric (the key, if a score holds several
numbers), limit.
"""

import importlib
import os
import tempfile

from guest import Unusable, text_of


def tasks(spec):
    """The samples of the task's data set."""
    for index, sample in enumerate(_task(spec).dataset):
        said = sample.input if isinstance(sample.input, str) else "\n\n".join(each.text for each in sample.input)
        target = sample.target if isinstance(sample.target, str) else list(sample.target)
        id = _id(sample, index)
        yield {"id": f"{_name(spec)}-{id}", "instruction": said, "data": {"answer": target, "sample": id}}


def play(spec, index, model):
    """Evaluates one sample; the value of its first score."""
    from inspect_ai import eval as evaluate
    from inspect_ai.scorer import value_to_float

    os.environ["AGENTRL_API_KEY"], os.environ["AGENTRL_BASE_URL"] = model.key, model.url
    task = _task(spec)
    id = _id(task.dataset[index], index)
    with tempfile.TemporaryDirectory() as logs:
        (log,) = evaluate(
            task,
            model="openai-api/agentrl/policy",
            sample_id=id,
            log_dir=logs,
            display="none",
            epochs=1,
            log_level="error",
            max_retries=0,
            fail_on_error=False,
            max_connections=1,
            log_samples=True,
        )
        if not log.samples:  # samples are read from the log when they are asked for
            raise Unusable(f"{spec['task']}, sample {id}: {log.error.message if log.error else log.status}")
        (played,) = log.samples
        if not played.scores:
            raise Unusable(f"{spec['task']}, sample {id}: {played.error.message if played.error else 'no score'}")
        name, score = next(iter(played.scores.items()))
        value = score.value
        if isinstance(value, dict):
            if spec.get("metric") not in value and len(value) != 1:
                raise Unusable(f"the score {name} holds {', '.join(value)}: give spec.metric")
            value = value[spec["metric"]] if spec.get("metric") in value else next(iter(value.values()))
        return {"reward": float(value_to_float()(value))}, text_of(played.output.completion)


def _task(spec):
    from inspect_ai._eval.loader import load_tasks
    from inspect_ai._util.error import PrerequisiteError

    if "task" not in spec:
        raise Unusable("inspect_ai needs spec: {task: inspect_evals/NAME, or file.py@NAME}")
    importlib.import_module("openai")  # the policy is a model of inspect_ai's provider openai-api
    if spec["task"].startswith("inspect_evals/"):
        importlib.import_module("inspect_evals")
    file = spec["task"].partition("@")[0]
    os.chdir(os.path.dirname(file) or "." if os.path.isfile(file) else ".")  # where the task finds its data
    try:
        found = load_tasks([spec["task"]], spec.get("args", {}))
    except (PrerequisiteError, FileNotFoundError, NotImplementedError) as error:
        said = getattr(error, "message", error)
        raise Unusable(f"{spec['task']} cannot be loaded: {said} ({_NAMED})") from None
    if len(found) != 1:
        raise Unusable(f"{spec['task']} names {len(found)} tasks: {_NAMED}")
    return found[0]


_NAMED = "give inspect_evals/NAME, or file.py@NAME"


def _id(sample, index):
    """A sample's id; where it has none, an evaluation counts from 1."""
    return index + 1 if sample.id is None else sample.id


def _name(spec):
    return spec["task"].rpartition("@")[2].rpartition("/")[2]
