"""The policy in training: maps a pack to the log-probabilities of its trained tokens.

With a vocabulary of 49,152, the logits of 16,384 predictions take 3.2 GB, and their gradient takes as much again.
Beyond `logits_mb`, predictions are computed in chunks, and the logits of a chunk are recomputed for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl.models.layers import recurrent_layers
from agentrl.models.vision.families import family_of
from agentrl.training.model.attention import REMEDY, TreeAttention, tree_attention
from agentrl.training.model.packing import Ints, Layout, Pack, pack
from agentrl.training.model.routers import balance_loss
from agentrl.training.model.scores import Entropy, token_scores
from agentrl.training.model.vision_inputs import TrainedSight, VisionInputs
from agentrl.types.errors import DeadPolicy, TrainError
from agentrl.types.sample import TrainingSample

Packs = TypeVar("Packs")

EAGER = "load the model with attn_implementation='eager'"

# Transformations of the logits after the output layer in some model families, by configuration key.
_AFTER_HEAD: dict[str, Callable[[float, Tensor], Tensor]] = {
    "logit_scale": lambda value, logits: logits * value,  # Cohere
    "logits_scaling": lambda value, logits: logits / value,  # Granite
    "final_logit_softcapping": lambda value, logits: value * torch.tanh(logits / value),  # Gemma
}


class Policy(nn.Module):
    """A causal language model (of transformers) that computes packs.

    Args:
        precision: bfloat16 computes matrix products in bfloat16 (autocast); the weights keep their type.
        exact_head: compute the output layer in float32 nevertheless, from hidden states and weights as they are.
        logits_mb: size of the float32 logits of one chunk.
        checkpointing: recompute the activations within decoder layers for the gradient, instead of keeping them.
        eyes: for a model that sees; None: samples hold text only.

    Attributes:
        layout: layout of its packs (`choose_layout`).
        balances: whether each pass stores the router loss of a mixture of experts in `imbalance` (else None).
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
        eyes: VisionInputs | None = None,
    ) -> None:
        super().__init__()
        self.model = model.eval()
        self.sight = None if eyes is None else TrainedSight(model, eyes)
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
        """Log-probabilities of the pack's E trained tokens at the pack's temperature (0 counts as 1), float32 [E]; and,
        unless `entropy` is "none", the entropies of the whole distributions in nats [E] ("gradient":
        differentiable)."""
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

    def seeing(self, samples: Sequence[TrainingSample], packs: Iterable[Packs]) -> Iterator[Packs]:
        """The packs of samples, one by one. Their images are known meanwhile (`TrainedSight.minibatch`), and the
        gradient of the packs goes through the tower when all have been taken."""
        with nullcontext() if self.sight is None else self.sight.minibatch(samples):
            yield from packs

    def hidden(self, packed: Pack) -> Tensor:
        """The last hidden states [Q, H] at the pack's predictions."""
        dtype = torch.bfloat16 if self.bf16 else None
        states, said = hidden_states(self.model, packed, dtype, routers=self.balances, sight=self.sight)
        self.imbalance = balance_loss(said, self.model.config.get_text_config().num_experts_per_tok) if said else None
        return states

    def states(self, packed: Pack) -> Tensor:
        """Returns `hidden` for external callers: in float32; sharded weights are gathered first."""
        with self.autocast():
            return self.hidden(packed).float()

    def autocast(self, enabled: bool | None = None) -> torch.autocast:
        """The autocast context of the model's matrix products; `enabled` overrides the precision."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bf16 if enabled is None else enabled)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [n, V], of hidden states [n, H]."""
        return self._logits(hidden).float()

    def _logits(self, hidden: Tensor) -> Tensor:
        """The same in the precision in which they are computed."""
        with self.autocast(enabled=self.bf16 and not self.exact_head):
            logits: Tensor = self.model.get_output_embeddings()(hidden.float() if self.exact_head else hidden)
        for change in self._after_head:
            logits = change(logits.float())
        return logits

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the targets [n], and entropies [n] (zeros if `entropy` is "none")."""
        return token_scores(self._logits(hidden), targets, temperature=temperature, entropy=entropy)


def _recomputed(model: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The forward pass of a layer, recomputed for the gradient."""
    again = partial(_in_tree, model, forward) if "tree" in kwargs else forward
    return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def _in_tree(model: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # The recomputation runs in the backward pass, outside of the context of tree attention.
    with tree_attention(model):
        return forward(*args, **kwargs)


def choose_layout(policy: Policy, wanted: Layout | Literal["auto"]) -> str | None:
    """Sets `policy.layout`, after checking on three short branches that it gives the model's own logits.

    Args:
        wanted: "auto" takes the tree if the check passes, else rows.

    Returns:
        The reason why "auto" took rows; None if it took the tree, or if `wanted` names a layout.

    Raises:
        DeadPolicy: the model's logits are not finite.
        TrainError: the logits of the layout differ from those of the model. The model may transform its logits in an
            unknown way. With "tree", layers may mix tokens by other means than attention (linear attention,
            convolutions), or attention is more than scaled dot products (sinks, score caps).
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
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    if policy.layout == "rows" and capped and config._attn_implementation == "sdpa":
        # Both sides of the comparison would silently drop the cap.
        raise TrainError("SDPA drops the model's cap of attention scores", place=place, remedy=EAGER)
    shown = nullcontext(list[int]()) if policy.sight is None else policy.sight.sample()
    with torch.no_grad(), policy.autocast(), shown as image:
        samples = _short_branches(vocabulary, image, policy.sight)
        (packed,) = pack(samples, 1 << 16, policy.layout)
        ours = policy.logits(policy.hidden(packed))[torch.from_numpy(packed.prediction_index).to(model.device)]
        theirs = torch.cat([_own_logits(policy, samples[sample].token_ids)[:-1] for sample in packed.samples]).float()
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


def _short_branches(vocabulary: int, image: Sequence[int], sight: TrainedSight | None) -> list[TrainingSample]:
    """Three branches with common prefixes; if the model takes images, two of them contain one."""
    text = [(5, 6, 7, *image, 8, 9, 10), (5, 6, 7, *image, 11, 12), (5, 13, 14, 15)]
    samples = []
    for number, branch in enumerate(text):
        nothing = np.zeros(len(branch), np.float32)
        plain = [token if token < 0 else token % vocabulary for token in branch]
        ids = np.array(plain if sight is None else sight.plain_text(plain), np.int64)
        samples.append(TrainingSample(ids, np.arange(len(ids)) > 0, nothing, nothing, "check", "check", number))
    return samples


def _own_logits(policy: Policy, ids: Ints) -> Tensor:
    """Logits [n, vocab] of transformers' forward pass of a text, or of a text with images."""
    if policy.sight is not None:
        return policy.sight.own_logits(ids.tolist())
    output = policy.model(input_ids=torch.from_numpy(ids)[None].to(policy.model.device), use_cache=False)
    logits: Tensor = output.logits[0]
    return logits


def hidden_states(
    model: Any,
    packed: Pack,
    dtype: torch.dtype | None = None,
    *,
    routers: bool = False,
    sight: TrainedSight | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """The model's last hidden states [Q, H] at the pack's predictions.

    Args:
        dtype: type of queries, keys and values; default: the model's.
        sight: of a model that sees, which knows the images of the pack.
        routers: return also the router logits of a mixture of experts, [T, experts] by layer; else an empty list.

    Raises:
        TrainError: the pack holds placeholders of an image, and the model takes text only.
    """
    if packed.token_ids.min(initial=0) < 0 and sight is None:  # placeholders of images
        raise TrainError(
            f"a sample holds an image, and {type(model).__name__} takes text only",
            place="training samples",
            remedy="train a model that sees (docs/images.md), or leave the image out",
        )
    asked = {"use_cache": False, **({"output_router_logits": True} if routers else {})}
    if packed.layout == "tree":
        output, real = _tree_pass(model, packed, dtype or model.dtype, asked, sight)
    else:
        output, real = _row_pass(model, packed, asked, sight)
    states: Tensor = output.last_hidden_state.flatten(0, 1)[real]
    said = [layer.flatten(0, -2)[real] for layer in getattr(output, "router_logits", None) or () if layer is not None]
    return states[torch.from_numpy(packed.logit_positions).to(model.device)], said


def _tree_pass(
    model: Any, packed: Pack, dtype: torch.dtype, asked: dict[str, Any], sight: TrainedSight | None
) -> tuple[Any, Any]:
    """The output for a pack with shared prefixes, and the output positions of the pack's tokens."""
    places = packed.positions if sight is None else sight.pack_positions(packed)
    ids, positions = (torch.from_numpy(index).to(model.device) for index in (packed.token_ids, places))
    shown = {"input_ids": ids[None]} if sight is None else sight.inputs(ids[None], sight.places(packed.token_ids))
    with tree_attention(model):
        tree = TreeAttention.of(packed, model.device, dtype)
        return body(model)(**shown, position_ids=positions[..., None, :], tree=tree, **asked), slice(None)


def _row_pass(model: Any, packed: Pack, asked: dict[str, Any], sight: TrainedSight | None) -> tuple[Any, Any]:
    """Variant of `_tree_pass` with the model's attention on padded rows. Right padding cannot affect a causal model."""
    lengths = np.array([segment.end - segment.start for segment in packed.segments])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(real.shape, np.int64)
    ids[real] = packed.token_ids
    shown: dict[str, Any] = {"input_ids": torch.from_numpy(ids).to(model.device)}
    if sight is not None:
        shown = sight.inputs(shown["input_ids"], sight.places(ids.reshape(-1)))
        if sight.in_grid:
            positions = np.zeros((3, *real.shape), np.int64)
            positions[:, real] = sight.pack_positions(packed)
            shown["position_ids"] = torch.from_numpy(positions).to(model.device)
    output = body(model)(**shown, **asked)
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
    """The model without its output layer; of one that sees, without its tower."""
    return model.get_decoder() if model.base_model is model or family_of(model.config) else model.base_model


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
