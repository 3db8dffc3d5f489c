"""Modules and classes that have moved: importing one by its old name gives an error that says the new name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_SAME_NAME: dict[tuple[str, str], str] = {
    ("", "config"): "recipe sections",
    ("", "curriculum"): "task_source",
    ("", "rollout"): "agent",
    ("", "types"): "closing errors paths seeds task values",
    ("chat", "chat.formats"): "fenced harmony json_calls named_calls parser pythonic tags xml",
    ("credit", "credit.estimators.outcome"): (
        "baselines bnpo canon copo entropy grpo pass_at_k pref_grpo reinforce riskpo unlikeliness"
    ),
    ("credit", "credit.estimators.turn"): (
        "capo gae gigpo igpo implicit_prm mt_grpo process returns roles salt step_grpo tempo treepo"
    ),
    ("curriculum", "curriculum.methods"): (
        "dart difficulty hints horizon limr noise prof relift rorecomp sources"
    ),
    ("engines", "engines.embedded"): (
        "batch cached_model decode draw kv_cache malloc native tiles weights"
    ),
    ("engines", "engines.embedded.forward"): "attention",
    ("engines.embedded", "engines.embedded.forward"): "plain_pass product",
    ("engines", "engines.vllm"): "adapters launch placement transfer",
    ("episode", "config"): "limits",
    ("episode", "rollout"): "session",
    ("episode", "rollout.faults"): "budgets failures outage",
    ("rewards", "rewards.functions"): (
        "calibration code cost feedback gui length maths patch reseek retrieval sql state verifiers"
    ),
    ("sandbox", "sandbox.linux"): "cgroups seccomp",
    ("sandbox", "sandbox.namespace"): "rootfs",
    ("sandbox", "sandbox.toolbox"): (
        "archives carry client egress endpoint inquest process session snapshot wire"
    ),
    ("scale", "distributed"): "gateway handle process ranks ray_cluster servers worker",
    ("scale", "simulate"): "clock pipeline simulator",
    ("types", "rollout"): "garbage",
    ("train", "train.auxiliary"): "critic reward_model",
    ("train", "train.batch"): "kl_reward model_columns truncation",
    ("train", "train.model"): "attention columns lora packing policy routers",
    ("train", "train.parallel"): "ranks shards",
}  # fmt: skip
"""Modules that kept their own name, by the package that they left and the one where they are."""

_NEW_NAME = {
    "episode.graph": "types.trajectory",
    "episode.collector": "rollout.garbage",
    "episode.runner": "rollout.player",
    "build": "rollout.builder",
    "cautions": "train.preflight.warnings",
    "chat.parsers": "chat.formats.registry",
    "credit.gain": "rollout.information_gain",
    "curriculum.flat": "curriculum.methods.zero_variance",
    "curriculum.settings": "curriculum.registry",
    "engines.base": "types.engine",
    "engines.guard": "engines.vllm.watchdog",
    "engines.open": "rollout.engines",
    "engines.settings": "config.engine",
    "engines.torch": "engines.embedded.engine",
    "engines.vllm_check": "engines.vllm.check",
    "engines.vllm_replies": "engines.vllm.replies",
    "episode.record": "types.episode",
    "imports": "registry.references",
    "model": "models.load",
    "plans": "rollout.specs",
    "play": "rollout.collector",
    "signal_checks": "train.preflight.signal",
    "recipe_file": "config.loader",
    "rewards.functions.judge": "rewards.functions.judges.client",
    "rewards.helper": "sandbox.helper",
    "rewards.judge": "rewards.functions.judges.client",
    "sandbox.contract": "types.sandbox",
    "sandbox.docker_container": "sandbox.docker.container",
    "sandbox.docker_engine": "sandbox.docker.engine",
    "sandbox.docker_gate": "sandbox.docker.create_limiter",
    "sandbox.docker_image": "sandbox.docker.image",
    "sandbox.docker_owner": "sandbox.docker.owner",
    "sandbox.namespace_tree": "sandbox.namespace.tree",
    "scale.crew": "distributed.worker_pool",
    "scale.places": "distributed.launchers",
    "scale.settings": "config.scale",
    "train.async_loop": "train.assembly",
    "train.course": "train.stages.course",
    "train.followers": "train.spmd",
    "train.critic_settings": "config.train",
    "train.lora_settings": "config.train",
    "train.loss_settings": "config.train",
    "train.reward_model_settings": "config.train",
    "train.learners": "train.auxiliary.models",
    "train.rollouts": "train.rollout_buffer",
    "train.row": "types.sample",
    "train.settings": "config.train",
    "view.progress": "reporters.terminal",
}

_CLASSES = {
    "credit.Credit": "credit.CreditAssigner",
    "curriculum.Lesson": "curriculum.CreditedEpisode",
    "engines.vllm.VLLMEngine": "engines.vllm.engine.VLLMEngine",
    "sandbox.docker.DockerBackend": "sandbox.docker.backend.DockerBackend",
    "sandbox.namespace.NamespaceBackend": "sandbox.namespace.backend.NamespaceBackend",
    "store.Credit": "store.StoredCredit",
}
"""Classes that a package had. `from package import Class` asks for a module of that name where no such class is."""


def _moves() -> dict[str, str]:
    same = {
        f"{old}.{name}".removeprefix("."): f"{new}.{name}"
        for (old, new), names in _SAME_NAME.items()
        for name in names.split()
    }
    return {f"agentrl.{old}": f"agentrl.{new}" for old, new in {**same, **_NEW_NAME, **_CLASSES}.items()}


MOVED = _moves()
"""Old name -> new name."""

GONE = {
    f"agentrl.{name}": [old for old in MOVED if old.startswith(f"agentrl.{name}.")] for name in ("episode", "scale")
}
"""Packages that no longer exist, with the modules that they had. Python asks for the package first, and then for the
module: the error must name all of them."""


class _Finder:
    """The last finder that Python asks: nothing was found under the old name."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raises an `ImportError` for what has moved; finds nothing else."""
        if moved := [name] if name in MOVED else GONE.get(name, []):
            raise ImportError("; ".join(f"{old} is now {MOVED[old]}" for old in moved), name=name)
        return None


def report_moved_names() -> None:
    """From now on, importing what has moved reports where it is."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
