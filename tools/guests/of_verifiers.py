"""verifiers: an environment of its v0 (`environment`), or a taskset of its v1 (`taskset`).

SPEC, v0: environment (an id for `load_environment`, or `package.module:Class`), args, split (train or eval).
"""

import asyncio
import importlib
import random

from guest import Away, Unusable, text_of


def tasks(spec):
    """The rows of the environment's data set."""
    for index, row in enumerate(_rows(_environment(spec), spec)):
        data = {"answer": row.get("answer"), "info": row.get("info")}
        yield {"id": f"{_name(spec)}-{index}", "instruction": _said(row["prompt"]), "data": data}


def play(spec, index, model):
    """One rollout with its scoring; the environment's reward."""
    from verifiers.types import ClientConfig

    env = _environment(spec)
    row = dict(_rows(env, spec)[index])
    random.seed()  # an episode's own
    client = ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=model.url, max_retries=0)
    (output,) = asyncio.run(env.run_group([row], client, model.name, dict(env.sampling_args)))
    error = output.get("error") or {}
    if "InfraError" in str(error.get("error_chain_repr")):
        raise Away(error["error_chain_str"])
    said = [each.get("content") for each in output["completion"] or () if each.get("role") == "assistant"]
    return {"reward": float(output["reward"] or 0.0)}, text_of(said[-1] or "") if said else ""


def _environment(spec):
    """The environment, made from the same random numbers by every process."""
    import numpy
    import verifiers

    if "environment" not in spec:
        raise Unusable("verifiers needs spec: {environment: ID}, or {environment: package.module:Class}")
    if not hasattr(verifiers, "load_environment"):
        raise Unusable(f"verifiers {verifiers.__version__} has no v0: pip install 'verifiers<0.2'")
    random.seed(0)
    numpy.random.seed(0)
    module, _, name = spec["environment"].partition(":")
    try:
        if name:
            return getattr(importlib.import_module(module), name)(**spec.get("args", {}))
        return verifiers.load_environment(module, **spec.get("args", {}))
    except (ImportError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ModuleNotFoundError):
            raise cause from None
        raise Unusable(f"{spec['environment']} cannot be loaded: {type(cause).__name__}: {cause}") from None


def _rows(env, spec):
    return env.get_eval_dataset() if spec.get("split") == "eval" else env.get_dataset()


def _name(spec):
    return spec["environment"].rpartition(":")[2].rpartition("/")[2]


def _said(prompt):
    """What the messages of a prompt say, without the system's."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(text_of(each["content"] or "") for each in prompt if each["role"] != "system")
