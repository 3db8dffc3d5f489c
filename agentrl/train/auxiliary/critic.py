"""The critic: a linear head on a language model's last hidden states, for credit that needs values or progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentrl.config.train import CriticSettings
from agentrl.train.model.packing import Floats, Pack
from agentrl.train.model.policy import Policy
from agentrl.train.parallel.ranks import Ranks, collective
from agentrl.train.parallel.shards import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)
from agentrl.types.sample import TrainingSample


class Critic:
    """Says a number of the state in which each trained token was sampled.

    With `body: policy` the head reads the policy's own states and the gradient stops there: the policy is trained by
    its own loss alone. With `body: copy` a copy of the model is trained along with the head.

    Args:
        body: the policy, or the copy.
        token_budget: unique tokens of one forward pass at most.
        ranks: the processes that train it together. The head is whole on each of them.
        role: which of the trainer's critics it is.
    """

    def __init__(
        self,
        body: Policy,
        settings: CriticSettings,
        token_budget: int,
        ranks: Ranks | None = None,
        role: str = "value",
    ) -> None:
        self.settings, self.token_budget, self.ranks, self.role = settings, token_budget, ranks or Ranks(), role
        self.frozen = settings.body == "policy"
        self.body = body
        model = body.model
        size = model.config.get_text_config().hidden_size
        self.head = nn.Linear(size, 1, device=model.device, dtype=torch.float32)
        # Zero at first: an untrained critic changes no advantage.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        groups = [{"params": list(self.head.parameters()), "lr": settings.lr}]
        if not self.frozen:
            groups.append({"params": list(body.parameters()), "lr": settings.body_lr})
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)

    @collective
    def predict(self, samples: Sequence[TrainingSample]) -> list[Floats]:
        """What the critic says of every trained token; 0 at the others. As long as the samples."""
        out = [np.zeros(len(sample.token_ids), np.float32) for sample in samples]
        with torch.no_grad():
            for packed, own in self.ranks.packs(samples, self.token_budget, self.body.layout):
                said = self._say(self._hidden(packed), packed)
                if own:
                    packed.scatter(said.cpu().numpy(), out)
        self.ranks.all_reduce(out)
        return out

    @collective
    def fit_values(self, samples: Sequence[TrainingSample], targets: Sequence[Floats]) -> dict[str, float]:
        """Moves the values towards targets, `steps` times over all samples.

        Their loss is the mean of `value_loss` over the tokens that are asked, old values being those before this call.

        Args:
            targets: as long as the samples; NaN where the critic is not asked.
        """
        before = self.predict(samples)
        asked = sum(int(np.isfinite(y[sample.loss_mask]).sum()) for sample, y in zip(samples, targets, strict=True))

        def loss(values: Tensor, packed: Pack) -> Tensor:
            target, old = (torch.from_numpy(packed.gather(column)).to(values.device) for column in (targets, before))
            held = target.isfinite()
            return value_loss(values[held], target[held], old[held], self.settings.clip).sum() / max(asked, 1)

        return {"value_loss": self._fit(self.ranks.packs(samples, self.token_budget, self.body.layout), loss)}

    @collective
    def fit_progress(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Moves what is said of the turns of each episode towards summing up to its reward: mean squared error.

        The progress of a turn is what is said of its last token (SPA-RL, arXiv:2505.20732).
        """
        packs = self.ranks.packs(samples, self.token_budget, self.body.layout)
        last = [_last_tokens(sample) for sample in samples]
        names = {name: number for number, name in enumerate(dict.fromkeys(sample.episode_id for sample in samples))}
        reward = np.zeros(len(names), np.float32)
        for sample in samples:
            reward[names[sample.episode_id]] = sample.reward
        episode = [np.full(len(sample.token_ids), names[sample.episode_id]) for sample in samples]
        owner = [torch.from_numpy(packed.gather(episode)) for packed, _ in packs]
        ends = [torch.from_numpy(packed.gather(last)) * own for packed, own in packs]
        errors: list[float] = []

        def sums() -> Tensor:
            """Of each episode, what its turns come to now. An episode's branches may lie in several packs."""
            found = torch.zeros(len(names))
            with torch.no_grad():
                for (packed, _), who, end in zip(packs, owner, ends, strict=True):
                    found.index_add_(0, who, self._say(self._hidden(packed), packed).cpu() * end)
            self.ranks.all_reduce([found.numpy()])
            return found

        for _ in range(self.settings.steps):
            error = sums() - torch.from_numpy(reward)
            errors.append(float((error**2).mean()))
            for (packed, _), who, end in zip(packs, owner, ends, strict=True):
                values = self._say(self._hidden(packed), packed)
                # The gradient of the mean squared error with respect to each turn's value.
                grad = (2 * error[who] * end / len(names)).to(values.device)
                (values * grad).sum().backward()  # type: ignore[no-untyped-call]
            self._step()
        return {"progress_loss": errors[-1]}

    @collective
    def state_dict(self) -> dict[str, Any]:
        """What continues the critic exactly, on any number of ranks."""
        body = {} if self.frozen else {"body": full_state_dict(self.body.model, device="cpu")}
        return {"head": self.head.state_dict(), "optimizer": full_optimizer_state_dict(self.optimizer), **body}

    @collective
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` returned."""
        load_full_state_dict(self.head, state["head"], self.ranks)
        load_full_optimizer_state_dict(self.optimizer, state["optimizer"], self.ranks)
        if not self.frozen:
            load_full_state_dict(self.body.model, state["body"], self.ranks)

    def _fit(self, packs: list[tuple[Pack, bool]], loss: Callable[[Tensor, Pack], Tensor]) -> float:
        """`steps` steps on the sum of `loss(values, pack)` over the packs of all ranks; the last step's sum."""
        held = [self._hidden(packed) for packed, _ in packs] if self.frozen else None
        total = 0.0
        for _ in range(self.settings.steps):
            total = 0.0
            for number, (packed, own) in enumerate(packs):
                said = self._say(self._hidden(packed) if held is None else held[number], packed)
                value = loss(said, packed) if own else said.sum() * 0.0
                value.backward()  # type: ignore[no-untyped-call]
                total += float(value.detach())
            self._step()
        return self.ranks.all_reduce_by_name({"loss": total})["loss"]

    def _step(self) -> None:
        self.ranks.all_reduce_gradients(self.head.parameters())
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _hidden(self, packed: Pack) -> Tensor:
        """The body's last hidden states [Q, H] where the pack's predictions are made."""
        with torch.set_grad_enabled(not self.frozen and torch.is_grad_enabled()):
            return self.body.states(packed)

    def _say(self, hidden: Tensor, packed: Pack) -> Tensor:
        """[E], by entry of the pack."""
        said: Tensor = self.head(hidden)[:, 0]
        return said[torch.from_numpy(packed.prediction_index).to(said.device)]


def value_loss(value: Tensor, target: Tensor, old: Tensor, clip: float | None) -> Tensor:
    """By token, max((v - y)^2, (v' - y)^2) / 2, where v' is v, but no farther than `clip` from the old value.

    verl core_algos.compute_value_loss. A value that has moved that far towards its target gets no gradient any more.
    """
    near = value if clip is None else old + (value - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2)


def _last_tokens(sample: TrainingSample) -> Floats:
    """1 at the last token of every trained turn, else 0."""
    out = np.zeros(len(sample.token_ids), np.float32)
    out[[end - 1 for _, _, end in sample.turn_spans]] = 1
    return out
