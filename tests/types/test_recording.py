"""The recording of an episode: drafts that are frozen once, and turns that are left out."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.types.engine import Completion
from agentrl.types.episode import Branch, CallRecord, Drift, Turn, TurnDraft, VersionSpan
from agentrl.types.recording import Recording
from agentrl.types.trajectory import ROOT


def said(recording: Recording, index: int, at: int, fork: Any = None) -> TurnDraft:
    """A turn after the node `at`, at the number `index`."""
    completion = Completion(token_ids=[index], logprobs=[-1.0], finish="stop", versions=[VersionSpan(0, 0, 1)])
    prompt = recording.trajectory.append_rendered(at, [100 + index])
    node = recording.trajectory.append_sampled(prompt, completion)
    turn = TurnDraft(index=index, node=node, text=f"turn {index}", finish="stop")
    recording.place(turn, fork)
    return turn


def test_turns_are_in_the_order_in_which_they_began_and_numbered_without_gaps() -> None:
    recording = Recording()
    second = said(recording, 3, ROOT, Branch(turn=0, reason="fork", at_token=0))
    said(recording, 1, second.node, Drift(turn=0, kind="template", at_token=1))
    fields = recording.fields()
    assert [(turn.index, turn.text) for turn in fields["turns"]] == [(0, "turn 1"), (1, "turn 3")]
    assert [each.turn for each in fields["drift"]] == [0]
    assert [each.turn for each in fields["branches"]] == [1]
    assert second.index == 3, "a draft keeps its own number"


def test_a_turn_as_it_was_does_not_change_with_its_draft() -> None:
    recording = Recording()
    draft = said(recording, 0, ROOT)
    before = recording.turns
    draft.observations += [{"role": "user", "content": "more"}]
    draft.calls += [CallRecord(id="c", name="f", arguments={}, outcome="ok", result="", duration_s=0.0)]
    draft.points += [(1.0, 2.0)]
    draft.rewards["r"] = 1.0
    assert [(t.observations, t.calls, t.points, t.rewards) for t in before] == [([], [], [], {})]
    assert [len(t.observations) for t in recording.turns] == [1]
    assert type(before[0]) is Turn
    with pytest.raises(AttributeError):
        before[0].text = "other"  # type: ignore[misc]


def test_a_turn_is_frozen_once() -> None:
    recording = Recording()
    draft = said(recording, 0, ROOT)
    recording.finish()
    first = recording.turns
    draft.text = "later"
    assert all(a is b for a, b in zip(first, recording.turns, strict=True))
    assert recording.turns[0].text == "turn 0"


def test_a_turn_that_is_dropped_leaves_neither_tokens_nor_a_branch() -> None:
    recording = Recording()
    first = said(recording, 0, ROOT)
    said(recording, 1, first.node, Branch(turn=0, reason="fork", at_token=1))
    last = said(recording, 2, first.node, Branch(turn=0, reason="edit", at_token=0))
    kept = recording.trajectory.nodes[last.node].token_ids
    recording.drop({1})
    fields = recording.fields()
    assert [turn.text for turn in fields["turns"]] == ["turn 0", "turn 2"]
    assert [(each.turn, each.reason) for each in fields["branches"]] == [(1, "edit")]
    assert fields["nodes"][fields["turns"][1].node].token_ids == kept
    assert [1] not in [node.token_ids for node in fields["nodes"]]


def test_what_is_recorded_later_does_not_get_into_an_episode() -> None:
    """A request that is under way when its session ends still gets its reply."""
    recording = Recording()
    first = said(recording, 0, ROOT)
    nodes = recording.fields()["nodes"]
    said(recording, 1, first.node)
    assert len(nodes) == 2
