"""Golden numbers of policy losses and KL estimates: values, and gradients for every log-probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.estimators.golden import Golden, arguments

NAMES = {"gspo": "gspo_token", "geo_mean": "gmpo"}
CLIPS = {"eps": ("clip_low", "clip_high"), "clip": ("clip_low", "clip_high"), "clip_low": ("clip_low",),
         "clip_high": ("clip_high",)}  # fmt: skip


def losses(golden: Golden) -> None:
    import torch

    from agentrl.training.losses.batch import TokenBatch
    from agentrl.training.losses.objective import Objective, kl_estimate
    from agentrl.training.losses.weights import token_weights
    from tests.training.test_losses import batch_of

    rows, column = _rows(golden)
    for case, expected in golden.data["expected"].items():
        settings = settings_of(case, golden.data["row_width"])
        objective = Objective.of(settings)
        weights = token_weights(rows, objective.aggregation, settings.token_norm)
        batch: TokenBatch = batch_of(rows, column["logprobs"], column["old_logprobs"], weights)
        total = (objective(batch)[0] * batch.weight).sum()
        total.backward()
        np.testing.assert_allclose(total.item(), expected["loss"], rtol=0, atol=golden.tolerance, err_msg=case)
        wanted = _flat(golden, expected["grad_wrt_logprob"])
        np.testing.assert_allclose(batch.logprob.grad, wanted, rtol=0, atol=golden.tolerance, err_msg=case)
    for name, expected in golden.data["kl"].items():
        new = torch.from_numpy(column["logprobs"]).requires_grad_()
        values = kl_estimate(new - torch.from_numpy(column["ref_logprobs"]), name)
        values.mean().backward()
        wanted = _flat(golden, expected["per_token"])
        np.testing.assert_allclose(values.detach(), wanted, rtol=0, atol=golden.tolerance, err_msg=name)
        wanted = _flat(golden, expected["grad_wrt_logprob_of_token_mean"])
        np.testing.assert_allclose(new.grad, wanted, rtol=0, atol=golden.tolerance, err_msg=name)

    value_losses(golden)


def value_losses(golden: Golden) -> None:
    """The critic's loss, token mean."""
    import torch

    from agentrl.training.auxiliary.critic import value_loss

    data = golden.data["value_loss"]
    value, target = (torch.tensor(_flat(golden, data[key])) for key in ("value_predictions", "returns"))
    old = torch.tensor([v for turn in golden.turns for v in turn["values"]])
    for key, expected in data.items():
        if key.startswith("cliprange_"):
            clip = float(key.removeprefix("cliprange_").replace("_", "."))
            found = value_loss(value, target, old, clip).mean().item()
            np.testing.assert_allclose(found, expected["loss"], rtol=0, atol=golden.tolerance, err_msg=key)


def settings_of(case: str, row_width: int) -> Any:
    """`dapo clip_low=0.2 clip_high=0.28 agg=token-mean` as settings of the trainer."""
    from agentrl.config.train import TrainSettings

    name, *rest = case.split()
    given = arguments(",".join(rest))
    clips = {setting: float(given[key]) for key, settings in CLIPS.items() if key in given for setting in settings}
    train: dict[str, Any] = {"loss": {"use": NAMES.get(name, name), **clips}}
    if "agg" in given:
        train["aggregation"] = given["agg"].replace("-", "_")
    if given.get("agg") == "seq-mean-token-sum-norm":
        train["token_norm"] = row_width
    if name == "ppo_clip":
        train["loss"]["dual_clip"] = 3.0
    return TrainSettings(**train)


def _rows(golden: Golden) -> tuple[list[Any], dict[str, np.ndarray]]:
    """A row per trajectory, of action tokens with the advantages of `grpo`, and the log-probabilities by kind."""
    from agentrl.types.sample import TrainingSample
    from tests.estimators.golden_trajectory import run

    table = golden.table()
    advantages = run("grpo", table, singleton="raw").turn[table.offsets[:-1]]
    rows = []
    for (group, trajectory), advantage in zip(golden.trajectories, advantages, strict=True):
        old = np.array([x for turn in trajectory["turns"] for x in turn["old_logprobs"]], np.float32)
        ones = np.ones(len(old), np.float32)
        rows.append(
            TrainingSample(np.arange(len(old)), ones > 0, old, ones * advantage, trajectory["traj_id"], group, 0)
        )
    kinds = ("logprobs", "old_logprobs", "ref_logprobs")
    return rows, {kind: np.array([x for t in golden.turns for x in t[kind]], np.float32) for kind in kinds}


def _flat(golden: Golden, by_trajectory: dict[str, list[list[float]]]) -> list[float]:
    return [x for _, t in golden.trajectories for turn in by_trajectory[t["traj_id"]] for x in turn]
