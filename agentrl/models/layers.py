"""The kinds of layers that a model has, as its configuration names them."""

from __future__ import annotations

from typing import Any

ATTENDING = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
STATELESS = frozenset({"mlp", "moe"})


def recurrent_layers(config: Any) -> str:
    """Returns the kinds of layers with a recurrent state instead of keys and values (linear attention, convolutions),
    as `linear_attention, conv`; "" if the model has none."""
    kinds = dict.fromkeys(getattr(config.get_text_config(), "layer_types", None) or ())
    return ", ".join(kind for kind in kinds if kind not in ATTENDING | STATELESS)
