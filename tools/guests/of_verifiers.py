"""verifiers: an environment of v0 (`environment`), or a taskset of v1 (`taskset`).

SPEC, v0: environment (an id for `load_environment`, or `package.module:Class`), args, split (train or eval).
SPEC, v1: taskset (its id), args, n (for unbounded ones), env (further configuration: id, roles, harnesses).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import verifiers
from guest import Away, Model, Played, Row, Spec, Unusable, share, text_of

V0 = hasattr(verifiers, "load_environment")
if V0:
    share("verifiers.envs.stateful_tool_env", "verifiers.clients.openai_chat_completions_client", "datasets")
else:
    share("verifiers.v1.env", "verifiers.v1.utils.loaders", "verifiers.v1.harnesses.utils.launch")
share("openai.resources.chat", "anyio._backends._asyncio")


def tasks(spec: Spec) -> Iterator[Row]:
    """Yields the rows of the environment's data set, or the tasks of the taskset."""
    if "taskset" in spec:
        yield from _listed(spec)
        return
    env = _environment(spec)
    declares = bool(getattr(env, "tools", None) or getattr(env, "tool_defs", None))
    for index, row in enumerate(_rows(env, spec)):
        data = {"answer": row.get("answer"), "info": row.get("info")}
        said = {"instruction": _said(row["prompt"]), "data": data, "declares": declares}
        yield {"id": f"{_name(spec)}-{index}", **said}


def play(spec: Spec, index: int, model: Model) -> Played:
    """Runs and scores one rollout; returns the environment's reward."""
    return asyncio.run(_episode(spec, index, model)) if "taskset" in spec else _rollout(spec, index, model)


def _rollout(spec: Spec, index: int, model: Model) -> Played:
    from verifiers.types import ClientConfig

    env = _environment(spec)
    row = dict(_rows(env, spec)[index])
    random.seed()  # reseed for each episode
    client = ClientConfig(api_key_var="AGENTRL_API_KEY", api_base_url=model.url, max_retries=0)
    (output,) = asyncio.run(env.run_group([row], client, model.name, dict(env.sampling_args)))
    error = output.get("error") or {}
    if "InfraError" in str(error.get("error_chain_repr")):
        raise Away(error["error_chain_str"])
    said = [each.get("content") for each in output["completion"] or () if each.get("role") == "assistant"]
    return {"reward": float(output["reward"] or 0.0)}, text_of(said[-1] or "") if said else ""


def _environment(spec: Spec) -> Any:
    """Loads the environment, with the same random seed in every process."""
    import numpy

    if "environment" not in spec:
        raise Unusable("verifiers needs spec: {environment: ID}, {environment: package.module:Class} or {taskset: ID}")
    if not V0:
        raise Unusable(f"verifiers {verifiers.__version__} has no v0: pip install 'verifiers<0.2'")
    random.seed(0)
    numpy.random.seed(0)
    module, _, name = spec["environment"].partition(":")
    try:
        if name:
            return getattr(importlib.import_module(module), name)(**spec.get("args", {}))
        return verifiers.load_environment(module, **spec.get("args", {}))
    except (ImportError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise _unusable(spec["environment"], error) from None


def _unusable(what: str, error: BaseException) -> BaseException:
    """Returns the exception for a failed load: the missing package, or `Unusable` with the cause."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        return cause
    return Unusable(f"{what} cannot be loaded: {type(cause).__name__}: {cause}")


def _rows(env: Any, spec: Spec) -> Any:
    return env.get_eval_dataset() if spec.get("split") == "eval" else env.get_dataset()


def _name(spec: Spec) -> str:
    return str(spec["environment"]).rpartition(":")[2].rpartition("/")[2]


def _said(prompt: Any) -> str:
    """Joins the texts of a prompt's messages, without system messages."""
    if prompt is None or isinstance(prompt, str):
        return prompt or "The environment begins."
    messages = [each if isinstance(each, dict) else each.model_dump(mode="json") for each in prompt]
    return "\n\n".join(text_of(each["content"] or "") for each in messages if each["role"] != "system")


def _listed(spec: Spec) -> Iterator[Row]:
    """Yields the tasks of a taskset; `info` holds all of a task's data."""
    taskset = _composed(spec).taskset
    if not taskset.bounded and "n" not in spec:
        raise Unusable(f"the taskset {spec['taskset']} has no end: say how many tasks, spec: {{n: 100}}")
    for index, task in enumerate(itertools.islice(taskset, spec.get("n"))):
        info = task.data.model_dump(mode="json", exclude={"prompt"}, exclude_none=True)
        data = {"answer": info.get("answer"), "info": info}
        said = {"instruction": _said(task.data.prompt), "data": data, "declares": _declares(type(taskset), type(task))}
        yield {"id": f"{spec['taskset']}-{index}", **said}


def _declares(*classes: type) -> bool:
    """Returns True if a class of the environment has a hook for tools, in any version of verifiers."""
    bases = [base for cls in classes for base in cls.__mro__ if not base.__module__.startswith("verifiers.")]
    return any("tool" in name for base in bases for name in vars(base) if name[0] != "_")


async def _episode(spec: Spec, index: int, model: Model) -> Played:
    """Runs one episode of a taskset: the policy plays every role; a role's reward is that of its traces.

    `reward` is the mean over trainable traces; each role also has its own reward, under its name.
    """
    from verifiers.v1.clients import EvalClientConfig, ModelContext

    env = _composed(spec)
    task = next(itertools.islice(env.taskset, index, None))
    client = EvalClientConfig(base_url=model.url, api_key_var="AGENTRL_API_KEY")
    async with env.serving():
        episode = await env.run_episode(task, ModelContext(model=model.name, client=client))
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        said = "; ".join(f"{error.type}: {error.message}" for error in errors)[:2000]
        raise (Away if errors[0].type in _OUTSIDE else RuntimeError)(said)
    by_role: dict[str, list[Any]] = {}
    for trace in episode.traces:
        by_role.setdefault(trace.agent.name, []).append(trace)
    rewards = {role: _mean(traces) for role, traces in by_role.items()}
    own = [trace for trace in episode.traces if trace.agent.trainable]
    return {**rewards, "reward": _mean(own or episode.traces)}, text_of(episode.traces[-1].last_reply or "")


_OUTSIDE = ("SandboxError", "InterceptionError", "TunnelError", "ProviderError")
"""Errors that a retry may avoid."""


def _mean(traces: Any) -> float:
    return sum(float(trace.reward) for trace in traces) / len(traces)


def _composed(spec: Spec) -> Any:
    """Loads the taskset with its agents: on this machine, in verifiers' chat loop unless `env` overrides it."""
    try:
        from verifiers.v1.configs.agent import AgentConfig
        from verifiers.v1.utils.loaders import default_harness_id, env_config_type, load_environment
    except ImportError:
        raise Unusable(f"verifiers {verifiers.__version__} has other tasksets: pip install 'verifiers>=0.4'") from None
    name, given = spec["taskset"], spec.get("env", {})
    random.seed(0)
    try:
        config = env_config_type(name, given.get("id", ""))
        plain = {} if default_harness_id(name) != "bash" else {"harness": {"id": "null"}}
        roles = {
            role: {"runtime": {"type": "subprocess"}, **({} if field.default.harness else plain), **given.get(role, {})}
            for role, field in config.model_fields.items()
            if isinstance(field.default, AgentConfig)
        }
        taskset = {"id": name, **spec.get("args", {})}
        env = load_environment(config.model_validate({**given, **roles, "taskset": taskset}))
    except (ImportError, ValueError, TypeError, AttributeError) as error:
        raise _unusable(name, error) from None
    _without_uv()
    return env


def _without_uv() -> None:
    """Runs the chat loop with this interpreter, because it has the same dependencies as verifiers; others need uv."""
    from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
    from verifiers.v1.runtimes.subprocess import SubprocessRuntime

    prepare = SubprocessRuntime.prepare_uv_script

    async def prepared(self: Any, script: str, env: Any = None, **more: Any) -> Any:
        if script != CHAT_PROGRAM_SOURCE:
            return await prepare(self, script, env, **more)
        await self.write("chat.py", script.encode())
        return [sys.executable, "chat.py"]

    SubprocessRuntime.prepare_uv_script = prepared
