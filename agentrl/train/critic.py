"""The critic: a linear head on a language model's last hidden states, for credit that needs values or progress."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentrl.train.attention import Tree, tree_attention
from agentrl.train.critic_settings import CriticSettings
from agentrl.train.packing import Floats, Pack, pack
from agentrl.train.row import Row


class Critic:
    """Says a number of the state in which each trained token was sampled.

    With `body: policy` the head reads the policy's own states and the gradient stops there: the policy is trained by
    its own loss alone. With `body: copy` a copy of the model as it is now is trained along with the head.

    Args:
        model: the policy, of transformers.
        token_budget: unique tokens of one forward pass at most.
    """

    def __init__(self, model: Any, settings: CriticSettings, token_budget: int) -> None:
        self.settings, self.token_budget = settings, token_budget
        self.frozen = settings.body == "policy"
        self.body = model if self.frozen else copy.deepcopy(model).requires_grad_(True).eval()
        size = model.config.get_text_config().hidden_size
        self.head = nn.Linear(size, 1, device=model.device, dtype=torch.float32)
        # Zero at first: an untrained critic changes no advantage.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        body = [] if self.frozen else [p for p in self.body.parameters() if p.requires_grad]
        groups = [{"params": list(self.head.parameters()), "lr": settings.lr}]
        if body:
            groups.append({"params": body, "lr": settings.body_lr})
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)

    def predict(self, rows: Sequence[Row]) -> list[Floats]:
        """What the critic says of every trained token; 0 at the others. As long as the rows."""
        out = [np.zeros(len(row.token_ids), np.float32) for row in rows]
        with torch.no_grad():
            for packed in pack(rows, self.token_budget):
                packed.put(self._say(self._hidden(packed), packed).cpu().numpy(), out)
        return out

    def fit_values(self, rows: Sequence[Row], targets: Sequence[Floats]) -> dict[str, float]:
        """Moves the values towards targets, `steps` times over all rows.

        Their loss is the mean of `value_loss` over the tokens that are asked, old values being those before this call.

        Args:
            targets: as long as the rows; NaN where the critic is not asked.
        """
        packs = pack(rows, self.token_budget)
        before = self.predict(rows)
        flat = [(torch.from_numpy(p.take(targets)), torch.from_numpy(p.take(before))) for p in packs]
        asked = sum(int(torch.isfinite(y).sum()) for y, _ in flat)

        def loss(values: Tensor, number: int) -> Tensor:
            target, old = (column.to(values.device) for column in flat[number])
            held = target.isfinite()
            return value_loss(values[held], target[held], old[held], self.settings.clip).sum() / max(asked, 1)

        return {"value_loss": self._fit(packs, loss)}

    def fit_progress(self, rows: Sequence[Row]) -> dict[str, float]:
        """Moves what is said of the turns of each episode towards summing up to its reward: mean squared error.

        The progress of a turn is what is said of its last token (SPA-RL, arXiv:2505.20732).
        """
        packs = pack(rows, self.token_budget)
        last = [_last_tokens(row) for row in rows]
        names = {name: number for number, name in enumerate(dict.fromkeys(row.episode_id for row in rows))}
        reward = np.zeros(len(names), np.float32)
        for row in rows:
            reward[names[row.episode_id]] = row.reward
        episode = [np.full(len(row.token_ids), names[row.episode_id]) for row in rows]
        owner = [torch.from_numpy(packed.take(episode)) for packed in packs]
        ends = [torch.from_numpy(packed.take(last)) for packed in packs]
        errors: list[float] = []

        def sums() -> Tensor:
            """Of each episode, what its turns come to now. An episode's branches may lie in several packs."""
            found = torch.zeros(len(names))
            with torch.no_grad():
                for packed, who, end in zip(packs, owner, ends, strict=True):
                    found.index_add_(0, who, self._say(self._hidden(packed), packed).cpu() * end)
            return found

        for _ in range(self.settings.steps):
            error = sums() - torch.from_numpy(reward)
            errors.append(float((error**2).mean()))
            for packed, who, end in zip(packs, owner, ends, strict=True):
                values = self._say(self._hidden(packed), packed)
                # The slope of the mean squared error along each turn's value.
                slope = (2 * error[who] * end / len(names)).to(values.device)
                (values * slope).sum().backward()  # type: ignore[no-untyped-call]
            self._step()
        return {"progress_loss": errors[-1]}

    def state_dict(self) -> dict[str, Any]:
        """What continues the critic exactly."""
        body = {} if self.frozen else {"body": self.body.state_dict()}
        return {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict(), **body}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` returned."""
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        if not self.frozen:
            self.body.load_state_dict(state["body"])

    def _fit(self, packs: list[Pack], loss: Any) -> float:
        """`steps` steps on the sum of `loss(values, pack's number)` over the packs; the last step's sum."""
        held = [self._hidden(packed) for packed in packs] if self.frozen else None
        total = 0.0
        for _ in range(self.settings.steps):
            total = 0.0
            for number, packed in enumerate(packs):
                hidden = self._hidden(packed) if held is None else held[number]
                value = loss(self._say(hidden, packed), number)
                value.backward()
                total += float(value.detach())
            self._step()
        return total

    def _step(self) -> None:
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _hidden(self, packed: Pack) -> Tensor:
        """The body's last hidden states [Q, H] where the pack's predictions are made."""
        device = self.body.device
        ids, positions, wanted = (
            torch.from_numpy(index).to(device) for index in (packed.token_ids, packed.positions, packed.logit_positions)
        )
        with torch.set_grad_enabled(not self.frozen and torch.is_grad_enabled()), tree_attention(self.body):
            output = self.body.base_model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                tree=Tree.of(packed, device, self.body.dtype),
            )
        hidden: Tensor = output.last_hidden_state[0][wanted].float()
        return hidden

    def _say(self, hidden: Tensor, packed: Pack) -> Tensor:
        """[E], by entry of the pack."""
        said: Tensor = self.head(hidden)[:, 0]
        return said[torch.from_numpy(packed.query).to(said.device)]


def value_loss(value: Tensor, target: Tensor, old: Tensor, clip: float | None) -> Tensor:
    """By token, max((v - y)^2, (v' - y)^2) / 2, where v' is v, but no farther than `clip` from the old value.

    verl core_algos.compute_value_loss. A value that has moved that far towards its target feels no slope any more.
    """
    near = value if clip is None else old + (value - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2)


def _last_tokens(row: Row) -> Floats:
    """1 at the last token of every trained turn, else 0."""
    out = np.zeros(len(row.token_ids), np.float32)
    out[[end - 1 for _, _, end in row.turn_spans]] = 1
    return out
