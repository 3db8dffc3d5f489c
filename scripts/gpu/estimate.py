"""Memory of a training step, estimated before it runs: what `agentrl train` will need on a GPU.

For decoders of the shape of Llama and Qwen2: norms, gated MLP, rotary embedding, one residual stream. Counted is what
autograd keeps of a layer, in bytes by token; the derivation stands beside each number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.config.train import TrainSettings
    from agentrl.training.model.packing import Pack


def estimate(config: Any, settings: TrainSettings, packs: Sequence[Pack], *, repeats: bool = False) -> dict[str, int]:
    """Bytes of the parts of a step's peak, which is at the beginning of a backward pass that is not the first.

    Args:
        config: of the model, which trains whole.
        packs: of the step.
        repeats: whether the attention kernel is given keys and values once for each query head (torch 2.11, on CUDA).
    """
    parameters = weights(config)
    half = settings.precision == "bfloat16"
    tokens = max(len(packed.token_ids) for packed in packs)
    keys = max(sum(len(segment.path) for segment in packed.segments) for packed in packs)
    predictions = max(len(packed.target_ids) for packed in packs)
    keys *= config.num_attention_heads // config.num_key_value_heads if repeats else 1
    kept = _kept_by_layer(config, half, tokens, keys)
    head = _predictions(config, settings.logits_mb, predictions, half)
    layers, halves = config.num_hidden_layers, 2 * parameters if half else 0
    if settings.activation_checkpointing:
        # The input of each layer; and of one layer at a time all of it, when the predictions are done.
        own = config.vocab_size * config.hidden_size
        halves = (halves - 2 * own) // layers + 2 * own if half else 0
        activations, head = layers * 4 * config.hidden_size * tokens + max(kept, head), 0
    else:
        activations = layers * kept
    return {
        "weights": 4 * parameters,
        "gradients": 4 * parameters if len(packs) > 1 else 0,
        "optimizer": 8 * parameters,  # Adam's two moments
        "half-precision weights": halves,  # autocast's copies, kept for the gradient
        "activations": activations,
        "predictions": head,
    }


def weights(config: Any) -> int:
    """Number of parameters."""
    hidden, inner = config.hidden_size, config.intermediate_size
    head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = head * config.num_attention_heads, head * config.num_key_value_heads
    biases = queries + 2 * keys if config.model_type == "qwen2" else 0
    layer = 2 * hidden * queries + 2 * hidden * keys + biases + 3 * hidden * inner + 2 * hidden
    ends = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2) + hidden
    return int(config.num_hidden_layers * layer + ends)


def _kept_by_layer(config: Any, half: bool, tokens: int, keys: int) -> int:
    """Bytes that a layer keeps for its gradient.

    In half precision by token, with the hidden size h and the MLP's i: the residual stream is float32, and each norm
    keeps its input and the normalised states (2 * 8h). Five products keep their input in bfloat16 (10h), for autocast
    makes a copy for each. Attention keeps queries and output (4h), the MLP gate, its activation, the other factor and
    their product (8i). Keys and values lie once for each token of a path (4 bytes by element of both).
    In float32 products share their input (2 * 4h), and all else is twice as large.
    """
    h, i = config.hidden_size, config.intermediate_size
    head = getattr(config, "head_dim", None) or h // config.num_attention_heads
    by_token, by_key = (16 + 10 + 4) * h + 8 * i, 4 * head * config.num_key_value_heads
    if not half:
        by_token, by_key = (16 + 8 + 8) * h + 16 * i, 2 * by_key
    return int(tokens * by_token + keys * by_key)


def _predictions(config: Any, logits_mb: int, predictions: int, half: bool) -> int:
    """Logits and their gradient in the type of the product, of a chunk (`Policy.chunk`) or of all predictions; the
    gradient of the head's weights in that type and in float32."""
    chunk = max(1, (logits_mb << 20) // (4 * config.vocab_size))
    width = 2 if half else 4
    head = config.vocab_size * config.hidden_size * ((width + 4) if half else 4)
    return int(2 * width * min(chunk, predictions) * config.vocab_size + head)
