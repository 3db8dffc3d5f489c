"""The critic: a linear head on a language model's last hidden states, for credit that needs values or progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentrl.config.train import CriticSettings
from agentrl.training.model.packing import Floats, Pack
from agentrl.training.model.policy import Policy
from agentrl.training.parallel.ranks import Ranks, collective
from agentrl.training.parallel.shards import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)
from agentrl.types.sample import TrainingSample


class Critic:
    """Predicts a value for the state in which each trained token was sampled.

    With `body: policy` the head reads the policy's hidden states, and the gradient stops there: only the policy loss
    trains the policy. With `body: copy` a copy of the model trains together with the head.

    Args:
        body: the policy or the copy.
        token_budget: maximum number of unique tokens per forward pass.
        ranks: the processes that train the critic together. Every rank has the whole head.
        role: the name of this critic among the auxiliary models.
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
        # Starts at zero: an untrained critic changes no advantage.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        groups = [{"params": list(self.head.parameters()), "lr": settings.lr}]
        if not self.frozen:
            groups.append({"params": list(body.parameters()), "lr": settings.body_lr})
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)

    @collective
    def predict(self, samples: Sequence[TrainingSample]) -> list[Floats]:
        """The values of all trained tokens, 0 at the others; one array per sample, with the sample's length."""
        out = [np.zeros(len(sample.token_ids), np.float32) for sample in samples]
        with torch.no_grad():
            packs = self.ranks.packs(samples, self.token_budget, self.body.layout)
            for packed, own in self.body.seeing(samples, packs):
                said = self._say(self._hidden(packed), packed)
                if own:
                    packed.scatter(said.cpu().numpy(), out)
        self.ranks.all_reduce(out)
        return out

    @collective
    def fit_values(self, samples: Sequence[TrainingSample], targets: Sequence[Floats]) -> dict[str, float]:
        """Fits the values to targets in `steps` steps over all samples.

        The loss is the mean of `value_loss` over the tokens with a target; the old values are those before this call.

        Args:
            targets: one array per sample, with the sample's length; NaN where a token has no target.
        """
        before = self.predict(samples)
        asked = sum(int(np.isfinite(y[sample.loss_mask]).sum()) for sample, y in zip(samples, targets, strict=True))

        def loss(values: Tensor, packed: Pack) -> Tensor:
            target, old = (torch.from_numpy(packed.gather(column)).to(values.device) for column in (targets, before))
            held = target.isfinite()
            return value_loss(values[held], target[held], old[held], self.settings.clip).sum() / max(asked, 1)

        return {"value_loss": self._fit(samples, loss)}

    @collective
    def fit_progress(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Fits the progress of the turns so that it sums to the reward of each episode: mean squared error.

        The progress of a turn is the value of its last token (SPA-RL, arXiv:2505.20732).
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
            """The current sum over the turns of each episode. The branches of an episode may be in several packs."""
            found = torch.zeros(len(names), dtype=torch.float32)
            with torch.no_grad():
                for (packed, _), who, end in zip(self.body.seeing(samples, packs), owner, ends, strict=True):
                    found.index_add_(0, who, self._say(self._hidden(packed), packed).cpu() * end)
            self.ranks.all_reduce([found.numpy()])
            return found

        for _ in range(self.settings.steps):
            error = sums() - torch.from_numpy(reward)
            errors.append(float((error**2).mean()))
            for (packed, _), who, end in zip(self.body.seeing(samples, packs), owner, ends, strict=True):
                values = self._say(self._hidden(packed), packed)
                # The gradient of the mean squared error with respect to each turn's value.
                grad = (2 * error[who] * end / len(names)).to(values.device)
                (values * grad).sum().backward()  # type: ignore[no-untyped-call]
            self._step()
        return {"progress_loss": errors[-1]}

    @collective
    def state_dict(self) -> dict[str, Any]:
        """Returns the state for an exact resume, on any number of ranks."""
        body = {} if self.frozen else {"body": full_state_dict(self.body.model, device="cpu")}
        return {"head": self.head.state_dict(), "optimizer": full_optimizer_state_dict(self.optimizer), **body}

    @collective
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a result of `state_dict`."""
        load_full_state_dict(self.head, state["head"], self.ranks)
        load_full_optimizer_state_dict(self.optimizer, state["optimizer"], self.ranks)
        if not self.frozen:
            load_full_state_dict(self.body.model, state["body"], self.ranks)

    def _fit(self, samples: Sequence[TrainingSample], loss: Callable[[Tensor, Pack], Tensor]) -> float:
        """Takes `steps` steps on the sum of `loss(values, pack)` over the packs of all ranks. Returns the last sum."""
        packs = self.ranks.packs(samples, self.token_budget, self.body.layout)
        held = [self._hidden(packed) for packed, _ in self.body.seeing(samples, packs)] if self.frozen else None
        total = 0.0
        for _ in range(self.settings.steps):
            total = 0.0
            for number, (packed, own) in enumerate(self.body.seeing(samples, packs) if held is None else packs):
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
        """The body's last hidden states [Q, H] at the pack's predictions."""
        with torch.set_grad_enabled(not self.frozen and torch.is_grad_enabled()):
            return self.body.states(packed)

    def _say(self, hidden: Tensor, packed: Pack) -> Tensor:
        """The value [E] of each entry of the pack."""
        said: Tensor = self.head(hidden)[:, 0]
        return said[torch.from_numpy(packed.prediction_index).to(said.device)]


def value_loss(value: Tensor, target: Tensor, old: Tensor, clip: float | None) -> Tensor:
    """Per token, max((v - y)^2, (v' - y)^2) / 2, where v' is v clipped to within `clip` of the old value.

    verl core_algos.compute_value_loss. A value that has moved by `clip` towards its target gets no gradient.
    """
    near = value if clip is None else old + (value - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2)


def _last_tokens(sample: TrainingSample) -> Floats:
    """1 at the last token of each trained turn, else 0."""
    out = np.zeros(len(sample.token_ids), np.float32)
    out[[end - 1 for _, _, end in sample.turn_spans]] = 1
    return out
