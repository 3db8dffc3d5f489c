"""A forward pass of common decoder families with few operations.

A third of a decode step of a small model is overhead: transformers' Python code, and separate operations for every
square, mean and sign. The families below have layers of the same four parts (RMSNorm, attention with rotary embeddings,
RMSNorm, gated linear units), which are computed directly here. The engine compares the logits with the model's own
before it samples (`CachedModel.prove`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized
from transformers import PreTrainedModel

from agentrl.engines.embedded.forward.product import Product

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})

ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings with angles independent of the sequence length."""

OWN = ("torch.nn.modules.", "transformers.models.", "transformers.activations")
"""Packages of the modules of an unmodified model."""

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""(layer, queries [tokens, H, D], keys [tokens, H', D], values [tokens, H', D], scaling) -> [tokens, H * D]."""


@dataclass(frozen=True)
class Norm:
    """RMSNorm."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, module: Any) -> Norm:
        """From a module of transformers."""
        return cls(module.weight, module.variance_epsilon)

    def __call__(self, states: Tensor) -> Tensor:
        return functional.rms_norm(states, self.weight.shape, self.weight, self.eps)


class Layer:
    """A decoder layer."""

    def __init__(self, number: int, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.number, self.width, self.scaling = number, attention.head_dim, attention.scaling
        self.before, self.after = Norm.of(layer.input_layernorm), Norm.of(layer.post_attention_layernorm)
        self.ask = Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.heads = [linear.out_features // self.width for linear in self.ask.linears]
        self.head_norms = (
            [Norm.of(norm) for norm in (attention.q_norm, attention.k_norm)] if hasattr(attention, "q_norm") else None
        )
        self.out, self.gate_up, self.down = attention.o_proj, Product(mlp.gate_proj, mlp.up_proj), mlp.down_proj
        self.act = functional.silu if isinstance(mlp.act_fn, nn.SiLU) else mlp.act_fn

    def __call__(self, states: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Forwards states [tokens, hidden]."""
        asked = self.ask(self.before(states)).view(len(states), -1, self.width)
        if self.head_norms is None:
            rotated = _rotated(asked[:, : -self.heads[2]], cos, sin)
        else:
            normed = (norm(x) for norm, x in zip(self.head_norms, torch.split(asked, self.heads, 1), strict=False))
            rotated = torch.cat([_rotated(x, cos, sin) for x in normed], 1)
        query, key, value = rotated[:, : self.heads[0]], rotated[:, self.heads[0] :], asked[:, -self.heads[2] :]
        states = states + self.out(attend(self.number, query, key, value, self.scaling))
        gate, up = self.gate_up(self.after(states)).chunk(2, -1)
        states = states + self.down(self.act(gate).mul_(up))
        return states


class PlainPass:
    """The forward pass of a model of `FAMILIES`.

    Attributes:
        products: joined matrix products of several linear layers each.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.model
        self._embed, self._head = body.embed_tokens, model.get_output_embeddings()
        self._layers = [Layer(number, layer) for number, layer in enumerate(body.layers)]
        self._norm, self._rotary = Norm.of(body.norm), body.rotary_emb
        self.products = [product for layer in self._layers for product in (layer.ask, layer.gate_up)]

    @classmethod
    def of(cls, model: PreTrainedModel) -> PlainPass | None:
        """The plain pass of a model. None for other families and modified ones (adapters, quantised layers, hooks)."""
        if type(model).__name__ not in FAMILIES:
            return None
        body: Any = model.model
        attends_by_sdpa = body.config._attn_implementation in ("sdpa", "agentrl_grouped", "agentrl_tiled")
        its_own = all(map(_of_the_family, model.modules()))
        return cls(model) if its_own and attends_by_sdpa and body.rotary_emb.rope_type in ROTATIONS else None

    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend, *, keep: Tensor | None) -> Tensor:
        """Computes logits [kept, vocab].

        Args:
            ids, positions: int64 [tokens].
            keep: int64 [kept], indices of the tokens whose logits are returned. None: all tokens.
        """
        states = self._embed(ids)
        cos, sin = self._angles(positions, states.dtype)
        for layer in self._layers:
            states = layer(states, cos, sin, attend)
        logits: Tensor = self._head(self._norm(states if keep is None else states[keep]))
        return logits

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of the rotary embedding, [tokens, 1, D] each."""
        angles = positions[:, None].float() * self._rotary.inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self._rotary.attention_scaling != 1.0:
            cos, sin = cos * self._rotary.attention_scaling, sin * self._rotary.attention_scaling
        return torch.cat([cos, cos], -1).to(dtype)[:, None], torch.cat([-sin, sin], -1).to(dtype)[:, None]


def _of_the_family(module: nn.Module) -> bool:
    """Returns True for an unmodified module of torch or transformers: no hooks, parametrizations, other `forward`."""
    changed = "forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks
    return type(module).__module__.startswith(OWN) and not changed and not is_parametrized(module)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)
