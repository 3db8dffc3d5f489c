from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.training.model.packing import pack
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample

from .make import make_rows


def row(ids: list[int], trained: list[int], number: int = 0, temperature: float = 1.0) -> TrainingSample:
    mask = np.isin(np.arange(len(ids)), trained)
    values = np.arange(len(ids), dtype=np.float32) + 100 * number
    return TrainingSample(np.array(ids, np.int64), mask, values, values, f"e{number}", "g", 0, temperature)


def prefixes(rows: list[TrainingSample]) -> set[tuple[int, ...]]:
    return {tuple(r.token_ids[: n + 1].tolist()) for r in rows for n in range(len(r.token_ids))}


trees = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(trees, st.integers(1, 40))
def test_every_row_can_be_read_back_from_its_pack(lists, budget):
    rows = [row(ids, list(range(1, len(ids), 2)), number) for number, ids in enumerate(lists)]
    packs = pack(rows, budget)
    assert sorted(index for packed in packs for index in packed.samples) == list(range(len(rows)))
    for packed in packs:
        mine = [rows[index] for index in packed.samples]
        # Forwarded tokens are the distinct prefixes, no more and no fewer.
        assert len(packed.token_ids) == len(prefixes(mine))
        assert len(packed.token_ids) <= budget or len({r.token_ids.tobytes() for r in mine}) == 1
        # Segments cover the pack; a segment's path spells a prefix of a row, at the positions 0, 1, 2, ...
        assert [s.start for s in packed.segments] == [0, *(s.end for s in packed.segments[:-1])]
        assert packed.segments[-1].end == len(packed.token_ids)
        for segment in packed.segments:
            assert tuple(packed.token_ids[segment.path].tolist()) in prefixes(mine)
            assert packed.positions[segment.path].tolist() == list(range(len(segment.path)))
            own = list(range(segment.start, segment.end))
            assert segment.path.tolist()[-len(own) :] == own
        # Each entry asks for its own token, after its own prefix.
        tokens = np.concatenate(packed.trained)
        path_of = {
            int(at): segment.path[: number + 1] for segment in packed.segments for number, at in enumerate(segment.path)
        }
        for query, index, token in zip(packed.prediction_index, packed.sample, tokens, strict=True):
            assert packed.target_ids[query] == rows[index].token_ids[token]
            seen = packed.token_ids[path_of[int(packed.logit_positions[query])]]
            assert seen.tolist() == rows[index].token_ids[:token].tolist()


def test_forwarded_tokens_are_the_unique_ones():
    rows = make_rows(groups=3, size=4)
    packs = pack(rows, 10**6)
    assert len(packs) == 1
    assert len(packs[0].token_ids) == len(prefixes(rows)) < sum(len(r.token_ids) for r in rows)


def test_rows_that_train_the_same_token_share_the_prediction_and_keep_their_advantages():
    (packed,) = pack([row([1, 2, 3], [2], 1), row([1, 2, 3, 4], [2, 3], 2)], 100)
    assert len(packed.target_ids) == 2
    assert len(packed.prediction_index) == 3
    values = [np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32) + 10]
    assert sorted(packed.gather(values).tolist()) == [2, 12, 13]
    into = [np.zeros(3, np.float32), np.zeros(4, np.float32)]
    packed.scatter(packed.gather(values), into)
    assert [part.tolist() for part in into] == [[0, 0, 2], [0, 0, 12, 13]]


def test_a_row_is_never_split_even_if_longer_than_the_budget():
    packs = pack([row(list(range(1, 30)), [5]), row([40, 41], [1], 1), row([40, 42], [1], 2)], 5)
    assert [len(packed.token_ids) for packed in packs] == [29, 3]


def test_temperatures_do_not_share_a_pack():
    packs = pack([row([1, 2], [1]), row([1, 2], [1], 1, temperature=0.5)], 100)
    assert [packed.temperature for packed in packs] == [0.5, 1.0]


def test_a_trained_first_token_is_refused():
    with pytest.raises(TrainError, match="episode e0, branch 0 trains its first token"):
        pack([row([1, 2], [0])], 100)


def test_no_rows_no_packs_and_order_does_not_matter():
    assert pack([], 10) == []
    rows = make_rows()
    there, back = pack(rows, 60), pack(rows[::-1], 60)
    assert [p.token_ids.tolist() for p in there] == [p.token_ids.tolist() for p in back]
    again = [dataclasses.replace(r) for r in rows]
    assert [p.prediction_index.tolist() for p in pack(again, 60)] == [p.prediction_index.tolist() for p in there]
