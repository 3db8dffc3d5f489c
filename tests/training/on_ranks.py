"""What `test_ranks.py` runs, alone and on two ranks: updates under several settings, gradients and results to files."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from agentrl.config.train import PreferenceLossSettings, TrainSettings
from agentrl.training.auxiliary.models import REWARD_MODEL, required_models
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import full_tensor
from agentrl.training.spmd import driver_trainer, worker_loop
from agentrl.training.trainer import Trainer
from agentrl.types.errors import RankFailed, TrainError
from agentrl.types.sample import TrainingSample
from tests.ranks import fork_ranks
from tests.training.make import llama, make_rows

CASES: dict[str, dict[str, Any]] = {
    "token": {},
    "small packs": {"token_budget": 60, "activation_checkpointing": True, "logits_mb": 1},
    "sequence": {"loss": "gspo", "kl": {"coef": 0.1, "estimator": "k3"}, "entropy_bonus": 0.05},
    "group": {"loss": "pacs", "minibatch": 4, "epochs": 2},
    "importance": {"importance": {"level": "sequence", "high": 1.5}, "aggregation": "seq_mean_token_mean"},
    "average": {"kl": {"coef": 0.1, "to": "ema_reference"}, "ema_reference": {"decay": 0.5}},
    "adapters": {"lora": {"rank": 4}},
    "top layer": {"trainable": {"top_layers": 1}},
    "dpo": {"token_budget": 60},
    "kto": {},
}
PREFERENCES = {"dpo", "kto"}
"""The cases of preference steps."""

LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "critic on the policy": ("value", {"critic": {"steps": 2}}),
    "critic of its own": ("value", {"critic": {"body": "copy", "steps": 2}, "token_budget": 60}),
    "progress beside adapters": ("progress", {"critic": {"body": "copy", "steps": 2}, "lora": {"rank": 4}}),
    "reward model": ("reward_model", {"reward_model": {"steps": 2, "lr": 1e-4}, "activation_checkpointing": True}),
}
"""By case: the learner, and settings."""


def rows_of_case() -> list[TrainingSample]:
    rows = make_rows(groups=2, size=4)
    return [dataclasses.replace(row, reward=float(int(row.episode_id[-1]) % 2)) for row in rows]


def run_case(name: str, ranks: Ranks) -> dict[str, Any]:
    """Two updates with the optimiser's state taken out and put back in between."""
    settings = TrainSettings(**{"lr": 1e-3, "minibatch": 100, **CASES[name]})
    preferred = PreferenceLossSettings(use=name) if name in PREFERENCES else None
    refers = settings.kl is not None and settings.kl.to == "reference"
    reference = llama(seed=1) if refers or preferred else None
    trainer = driver_trainer(llama(), settings, reference=reference, base=Path(), ranks=ranks)
    rows = [row for row in rows_of_case() if not preferred or row.episode_id.endswith(("e0", "e1"))]

    def step(seed: int) -> dict[str, float]:
        return trainer.update(rows, seed) if preferred is None else trainer.fit(rows, preferred, lr=1e-3)

    before = trainer.logprobs(rows)
    measured = trainer.logprobs(rows, under="reference") if reference is not None else []
    first = step(0)
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    second = step(1)
    if reference is not None:
        whole = Trainer(llama(seed=1), TrainSettings()).logprobs(rows)
        frozen = trainer.logprobs(rows, under="reference")
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(measured, whole, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(measured, frozen, strict=True)), "steps leave it as it was"
    weights = {key: tensor.clone() for key, tensor in trainer.weights().items()}
    return {
        "logprobs": torch.from_numpy(np.concatenate(before)),
        "metrics": [first, second],
        "weights": weights,
        "state": trainer.state_dict(),
    }


def run_learner(case: str, ranks: Ranks) -> dict[str, Any]:
    """Twice `steps` steps, with the state taken out and put back in between; what it says after each."""
    name, settings = LEARNERS[case]
    own = TrainSettings(**settings)
    trainer = driver_trainer(
        llama(), own, reference=None, base=Path(), ranks=ranks, auxiliary=required_models(own, {name, "prm_logprob"})
    )
    learner: Any = trainer.auxiliary[name]
    rows = rows_of_case()
    values = trainer.logprobs(rows)
    targets = [np.where(row.loss_mask, row.reward, np.float32(np.nan)) for row in rows]
    fit = {
        "value": lambda: learner.fit_values(rows, targets),
        "progress": lambda: learner.fit_progress(rows),
        REWARD_MODEL: lambda: learner.fit(rows, [each * 0.9 for each in values]),
    }[name]
    say = learner.logprobs if name == REWARD_MODEL else learner.predict
    first = fit()
    said = say(rows)
    learner.load_state_dict(learner.state_dict())
    second = fit()
    return {
        "metrics": [first, second],
        "said": [torch.from_numpy(np.concatenate(each)) for each in (said, say(rows))],
        "state": learner.state_dict(),
    }


def keep_gradients(kept: list[torch.Tensor]) -> None:
    """Writes down the gradient of every optimiser's step, whole."""

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        own = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        kept.append(torch.cat([full_tensor(gradient).flatten().clone() for gradient in own]))

    register_optimizer_step_pre_hook(keep)


def keep_calls(ranks: Ranks, kept: dict[str, list[torch.Tensor]]) -> None:
    """Writes down the tensors that rank 0 sends along with each call, by the call's name."""
    broadcast = ranks.broadcast

    def keeping(value: Any) -> Any:
        if isinstance(value, tuple) and isinstance(value[1], str):
            kept.setdefault(value[1], []).extend(each for each in tree_leaves(value) if isinstance(each, torch.Tensor))
        return broadcast(value)

    ranks.broadcast = keeping  # type: ignore[method-assign]


def train(out: str) -> None:
    torch.set_num_threads(1)
    gradients: list[torch.Tensor] = []
    keep_gradients(gradients)
    ranks = Ranks.from_torchrun()
    if ranks.rank:
        worker_loop(ranks)
        return
    results: dict[str, Any] = {}
    told: dict[str, list[torch.Tensor]] = {}
    keep_calls(ranks, told)
    for run, cases in ((run_case, CASES), (run_learner, LEARNERS)):
        for name in cases:
            results[name] = run(name, ranks)
            results[name]["gradients"] = list(gradients)
            gradients.clear()
    trainer = driver_trainer(llama(), TrainSettings(lr=1e-3), reference=None, base=Path(), ranks=ranks)
    rows = rows_of_case()
    rows[0].advantage[np.flatnonzero(rows[0].loss_mask)[0]] = np.nan
    try:
        trainer.update(rows, seed=0)
    except TrainError as error:
        results["refused"] = str(error)
    ranks.shutdown()
    results["told"] = {name: [(each.ndim, each.is_meta) for each in tensors] for name, tensors in told.items()}
    torch.save(results, out)


def fail(out: str, failing: int) -> None:
    """An update that fails on one rank in its first step. Every rank writes down what it raised."""
    ranks, plain = Ranks.from_torchrun(), Trainer._apply

    def apply(self: Trainer, *args: Any) -> None:
        if ranks.rank == failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        plain(self, *args)

    Trainer._apply = apply  # type: ignore[method-assign]
    try:
        if ranks.rank:
            worker_loop(ranks)
        else:
            trainer = driver_trainer(llama(), TrainSettings(lr=1e-3), reference=None, base=Path(), ranks=ranks)
            trainer.update(rows_of_case(), seed=0)
    except RankFailed as error:
        Path(f"{out}.{failing}.{ranks.rank}").write_text(str(error))


if __name__ == "__main__":
    for size, file in enumerate(sys.argv[1:], 1):
        if any(fork_ranks(size, partial(train, file))):
            sys.exit(f"failed on {size} ranks")
    for failing in (0, 1):
        fork_ranks(2, partial(fail, file, failing))
