"""The policy as training sees it: a pack in, the log-probabilities of its trained tokens out.

The logits of all predictions need not be in memory at once: at a vocabulary of 49,152, those of 16,384 predictions take
3.2 GB, and their gradient as much again. Beyond `logits_mb` the predictions come in chunks whose logits are computed a
second time for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl.models.layers import recurrent_layers
from agentrl.train.model.attention import REMEDY, TreeAttention, tree_attention
from agentrl.train.model.packing import Layout, Pack, pack
from agentrl.train.model.routers import balance_loss
from agentrl.types.errors import DeadPolicy, TrainError
from agentrl.types.sample import TrainingSample

Entropy = Literal["none", "value", "gradient"]

EAGER = "load the model with attn_implementation='eager'"

# What some model families do to their logits after the output layer, by the key of the configuration that says so.
_AFTER_HEAD: dict[str, Callable[[float, Tensor], Tensor]] = {
    "logit_scale": lambda value, logits: logits * value,  # Cohere
    "logits_scaling": lambda value, logits: logits / value,  # Granite
    "final_logit_softcapping": lambda value, logits: value * torch.tanh(logits / value),  # Gemma
}


class Policy(nn.Module):
    """A causal language model of transformers, on packs.

    Args:
        precision: bfloat16: matrix products in that (autocast); the weights stay as they are.
        exact_head: the product with the output layer in float32 all the same, of hidden states and weights as they are.
        logits_mb: of float32 logits, at a time.
        checkpointing: keep no activations within decoder layers; compute them again for the gradient.

    Attributes:
        layout: of the packs that it takes (`choose_layout`).
        balances: whether passes leave the loss of a mixture of experts' routers in `imbalance` (else None).
    """

    def __init__(
        self,
        model: Any,
        *,
        layout: Layout = "tree",
        precision: Literal["float32", "bfloat16"] = "float32",
        exact_head: bool = False,
        logits_mb: int = 512,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.model = model.eval()
        self.layout: Layout = layout
        self.balances = False
        self.imbalance: Tensor | None = None
        self.bf16 = precision == "bfloat16"
        self.exact_head = exact_head
        config = model.config.get_text_config()
        self.chunk = max(1, (logits_mb << 20) // (4 * config.vocab_size))
        values = ((change, getattr(config, name, None)) for name, change in _AFTER_HEAD.items())
        self._after_head = [partial(change, value) for change, value in values if value is not None]
        if checkpointing:
            for layer in decoder_layers(model):
                layer.forward = partial(_recomputed, model, layer.forward)

    def forward(self, packed: Pack, entropy: Entropy = "none") -> tuple[Tensor, Tensor | None]:
        """Of the pack's E trained tokens, float32 [E]: log-probability at the pack's temperature (0 counts as 1), and
        entropy (nats, of the whole distribution; with `gradient` it carries one) if asked for."""
        with self.autocast():
            hidden = self.hidden(packed)
        device = hidden.device
        targets, query = (torch.from_numpy(index).to(device) for index in (packed.target_ids, packed.prediction_index))
        score = partial(self._score, temperature=packed.temperature or 1.0, entropy=entropy)
        if len(hidden) <= self.chunk:
            logprob, found = score(hidden, targets)
        else:
            parts = [
                checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False)
                for part in zip(torch.split(hidden, self.chunk), torch.split(targets, self.chunk), strict=True)
            ]
            logprob, found = (torch.cat(column) for column in zip(*parts, strict=True))
        return logprob[query], None if entropy == "none" else found[query]

    def hidden(self, packed: Pack) -> Tensor:
        """The last hidden states [Q, H] where the pack's predictions are made."""
        dtype = torch.bfloat16 if self.bf16 else None
        states, said = hidden_states(self.model, packed, dtype, routers=self.balances)
        self.imbalance = balance_loss(said, self.model.config.get_text_config().num_experts_per_tok) if said else None
        return states

    def states(self, packed: Pack) -> Tensor:
        """The same for callers from outside: in float32, and, where weights are shards, after these were gathered."""
        with self.autocast():
            return self.hidden(packed).float()

    def autocast(self, enabled: bool | None = None) -> torch.autocast:
        """The context in which the model's products are computed; `enabled` overrules its precision."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bf16 if enabled is None else enabled)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [n, V] from hidden states [n, H]."""
        with self.autocast(enabled=self.bf16 and not self.exact_head):
            logits: Tensor = self.model.get_output_embeddings()(hidden.float() if self.exact_head else hidden)
        logits = logits.float()
        for change in self._after_head:
            logits = change(logits)
        return logits

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor]:
        """Of n predictions: the targets' log-probabilities, and the entropies (zeros if not asked for) [n]."""
        logits = self.logits(hidden)
        every = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, -1)
        logprob = every.gather(1, targets[:, None])[:, 0]
        if entropy == "none":
            return logprob, torch.zeros_like(logprob)
        if entropy == "value":
            every = every.detach()
            return logprob, -every.exp().mul_(every).sum(-1)
        return logprob, -(every.exp() * every).sum(-1)


def _recomputed(model: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A layer's forward pass, computed again for the gradient."""
    again = partial(_in_tree, model, forward) if "tree" in kwargs else forward
    return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def _in_tree(model: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # The second time is in the backward pass, when the model attends by itself again.
    with tree_attention(model):
        return forward(*args, **kwargs)


def choose_layout(policy: Policy, wanted: Layout | Literal["auto"]) -> str | None:
    """Sets `policy.layout` to one whose logits are the model's own, which three short branches prove.

    Args:
        wanted: "auto" takes the tree if it holds, else rows.

    Returns:
        Why "auto" did not take the tree; None if it did, or was not asked.

    Raises:
        DeadPolicy: the model's logits are not finite.
        TrainError: the layout's logits differ from those of the model, row by row: it does something to its logits
            that we do not know; under "tree", layers see more of a token's neighbours than attention shows them
            (linear attention, convolutions), or attention is more than scaled dot products (sinks, score caps).
    """
    if wanted != "auto":
        policy.layout = wanted
        _check_layout(policy)
        return None
    try:
        policy.layout = "tree"
        _check_layout(policy)
    except DeadPolicy:
        raise
    except (TrainError, TypeError, AttributeError, RuntimeError, ValueError) as refusal:
        policy.layout = "rows"
        _check_layout(policy)
        return str(refusal).partition("\n")[0]
    return None


def _check_layout(policy: Policy) -> None:
    model, place = policy.model, type(policy.model).__name__
    if policy.layout == "tree" and (kinds := recurrent_layers(model.config)):
        raise TrainError(f"its layers pass a state from token to token ({kinds})", place=place, remedy=REMEDY)
    if policy.layout == "tree" and not getattr(model, "_supports_attention_backend", False):
        raise TrainError("the model does not use transformers' attention interface", place=place, remedy=REMEDY)
    config = model.config.get_text_config()
    vocabulary = config.vocab_size
    branches = [(5, 6, 7, 8, 9, 10), (5, 6, 7, 11, 12), (5, 13, 14, 15)]
    samples = []
    for number, branch in enumerate(branches):
        nothing = np.zeros(len(branch), np.float32)
        ids = np.array(branch, np.int64) % vocabulary
        samples.append(TrainingSample(ids, np.arange(len(ids)) > 0, nothing, nothing, "check", "check", number))
    (packed,) = pack(samples, 64, policy.layout)
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    if policy.layout == "rows" and capped and config._attn_implementation == "sdpa":
        # Both sides of the comparison would drop the cap without a word.
        raise TrainError("SDPA drops the model's cap of attention scores", place=place, remedy=EAGER)
    with torch.no_grad(), policy.autocast():
        ours = policy.logits(policy.hidden(packed))[torch.from_numpy(packed.prediction_index).to(model.device)]
        ids = [torch.from_numpy(samples[sample].token_ids)[None].to(model.device) for sample in packed.samples]
        theirs = torch.cat([model(input_ids=each, use_cache=False).logits[0, :-1] for each in ids]).float()
    if not theirs.isfinite().all():
        raise DeadPolicy("the policy's logits are not finite", place=place)
    difference = (ours - theirs).abs().max().item()
    allowed = 1e-3 if model.dtype == torch.float32 and not policy.bf16 else 0.1
    if not difference <= allowed * max(1.0, theirs.abs().max().item()):
        raise TrainError(
            f"packed and plain logits differ by {difference:.3g}: the model cannot be trained on packed rows",
            place=place,
            remedy=REMEDY if policy.layout == "tree" else "no other layout is left: please report the model family",
        )


def hidden_states(
    model: Any, packed: Pack, dtype: torch.dtype | None = None, *, routers: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """The model's last hidden states [Q, H] where the pack's predictions are made.

    Args:
        dtype: of queries, keys and values, where it is not the model's.
        routers: also what the routers of its experts say of each token: [T, experts] by layer. Else an empty list.
    """
    asked = {"use_cache": False, **({"output_router_logits": True} if routers else {})}
    if packed.layout == "tree":
        output, real = _tree_pass(model, packed, dtype or model.dtype, asked)
    else:
        output, real = _row_pass(model, packed, asked)
    states: Tensor = output.last_hidden_state.flatten(0, 1)[real]
    said = [layer.flatten(0, -2)[real] for layer in getattr(output, "router_logits", None) or () if layer is not None]
    return states[torch.from_numpy(packed.logit_positions).to(model.device)], said


def _tree_pass(model: Any, packed: Pack, dtype: torch.dtype, asked: dict[str, Any]) -> tuple[Any, Any]:
    """The output for a pack whose prefixes are forwarded once, and which of its places hold the pack's tokens."""
    ids, positions = (torch.from_numpy(index).to(model.device) for index in (packed.token_ids, packed.positions))
    with tree_attention(model):
        tree = TreeAttention.of(packed, model.device, dtype)
        return body(model)(input_ids=ids[None], position_ids=positions[None], tree=tree, **asked), slice(None)


def _row_pass(model: Any, packed: Pack, asked: dict[str, Any]) -> tuple[Any, Any]:
    """The same with the model's own attention, row beside row. Padding on the right changes no causal model."""
    lengths = np.array([segment.end - segment.start for segment in packed.segments])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(real.shape, np.int64)
    ids[real] = packed.token_ids
    output = body(model)(input_ids=torch.from_numpy(ids).to(model.device), **asked)
    return output, torch.from_numpy(real.reshape(-1)).to(model.device)


def train_top_layers(model: Any, layers: int) -> None:
    """Freezes all but the topmost decoder layers and the last norm. No gradient is computed below them.

    Raises:
        TrainError: the model has fewer layers.
    """
    every = decoder_layers(model)
    if layers > len(every):
        raise TrainError(
            f"the model has {len(every)} layers", place="train.trainable.top_layers", remedy=f"at most {len(every)}"
        )
    model.requires_grad_(False)
    embeddings = model.get_input_embeddings()
    last = [child for child in body(model).children() if child is not embeddings]
    for module in (*every[-layers:], *(child for child in last if not isinstance(child, nn.ModuleList))):
        module.requires_grad_(True)


def body(model: Any) -> Any:
    """The model without its output layer."""
    return model.get_decoder() if model.base_model is model else model.base_model


def decoder_layers(model: Any) -> list[nn.Module]:
    """The model's decoder layers, lowest first.

    Raises:
        TrainError: the model's body holds no list of layers.
    """
    found = [child for child in body(model).children() if isinstance(child, nn.ModuleList)]
    if not found:
        raise TrainError(
            "the model has no list of decoder layers",
            place=type(model).__name__,
            remedy="train without trainable.top_layers and activation_checkpointing",
        )
    return list(found[0])
