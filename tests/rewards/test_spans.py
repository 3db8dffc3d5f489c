"""Rewards of parts of a reply: from the function to the record, and to the tokens in credit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

import agentrl
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.rewards import Gate
from agentrl.estimators.table import CreditTable
from agentrl.rewards import RewardError, RewardSet, Scored, Span
from agentrl.rewards.groups import score_group
from agentrl.rewards.score import Live
from agentrl.rewards.spans import ends_of
from agentrl.store import RunDir, rescored
from agentrl.store.rescored import Rescore
from agentrl.types.episode import Episode, Node, SpanReward, Turn
from agentrl.types.task import Task
from tests.estimators.tables import run
from tests.rewards.make import make_episode, turn

TASK = Task.of("t", "Go.")


def lines(turn: Turn) -> list[Span]:
    """The number of each line."""
    spans, at = [], 0
    for line in turn.text.split("\n"):
        spans.append(Span(at, at + len(line), float(line)))
        at += len(line) + 1
    return spans


def decode(ids: Any) -> str:
    """Tokens of one character each; 0 ends the turn."""
    return "".join(chr(token) for token in ids if token)


def spoken(*texts: str) -> Episode:
    """An episode of these replies, one token a character and one that ends the turn."""
    episode = make_episode(TASK, *(turn(text=text) for text in texts), tokens=1)
    nodes = [Node(parent=-1, kind="prompt", token_ids=[1])]
    nodes += [Node(parent=k, kind="sampled", token_ids=[*map(ord, text), 0]) for k, text in enumerate(texts)]
    return msgspec.structs.replace(episode, nodes=nodes)


async def scored(episode: Episode, rewards: dict[str, Any], **settings: Any) -> Episode:
    """The episode with the score of the rewards."""
    score = await RewardSet.from_recipe(rewards, **settings).score(TASK, episode, live=Live(decode=decode))
    return score.onto(episode)


async def test_spans_are_recorded_with_their_tokens_and_sum_to_the_value_of_the_turn() -> None:
    found = await scored(spoken("1\n-20", "3"), {"lines": {"use": lines, "weight": 0.5}})
    assert [each.rewards for each in found.turns] == [{"lines": -19.0}, {"lines": 3.0}]
    assert [each.reward for each in found.turns] == [-9.5, 1.5]
    assert found.turns[0].spans == [
        SpanReward("lines", 0, 1, 1.0, weight=0.5, first=0, last=0),
        SpanReward("lines", 2, 5, -20.0, weight=0.5, first=2, last=4),
    ]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Episode) == found


async def test_tokens_of_several_characters_hold_the_ends_of_spans() -> None:
    episode = spoken("12\n345")
    nodes = [episode.nodes[0], msgspec.structs.replace(episode.nodes[1], token_ids=[7, 8, 0])]
    texts = {7: "12\n3", 8: "45", 0: ""}
    live = Live(decode=lambda ids: "".join(texts[token] for token in ids))
    episode = msgspec.structs.replace(episode, nodes=nodes)
    score = await RewardSet.from_recipe({"lines": lines}).score(TASK, episode, live=live)
    assert [(span.first, span.last) for span in score.spans[0]] == [(0, 0), (0, 1)]
    unplaced = await RewardSet.from_recipe({"lines": lines}).score(TASK, episode)
    assert [(span.first, span.last) for span in unplaced.spans[0]] == [(-1, -1)] * 2


async def test_steps_and_gates_act_on_spans() -> None:
    rewards = {"lines": {"use": lines, "then": [{"clip": [-2, 2]}]}, "right": {"use": lambda task: 0.0}}
    found = await scored(spoken("1\n-20"), rewards, gates=[Gate(on="right", above=0.5)])
    assert [(span.value, span.weight) for span in found.turns[0].spans] == [(1.0, 0.0), (-2.0, 0.0)]
    assert found.turns[0].reward == 0.0


async def test_rewards_of_the_group_leave_the_spans_of_others() -> None:
    rewards = RewardSet.from_recipe({"lines": lines, "all": {"use": lambda group: [1.0 for _ in group]}})
    waiting = (await rewards.score(TASK, spoken("1\n2"), live=Live(decode=decode))).onto(spoken("1\n2"))
    (score,) = await score_group(rewards, [waiting])
    assert [(span.value, span.last) for span in score.spans[0]] == [(1.0, 0), (2.0, 2)]
    assert score.turn_totals == [3.0]


async def test_tokens_of_spans_of_the_group_are_known() -> None:
    rewards = RewardSet.from_recipe({"all": lambda group: [[[Span(0, 1, 1.0)]] for _ in group]})
    (score,) = await score_group(rewards, [spoken("ab")], decode=decode)
    assert score.spans == [[SpanReward("all", 0, 1, 1.0, first=0, last=0)]]


async def test_a_character_of_several_tokens_is_held_whole() -> None:
    tokenizer = ByteTokenizer()
    text = "\U0001f600a\n\u20acb"  # 4, 1, 1, 3 and 1 bytes
    episode = spoken(text)
    sampled = msgspec.structs.replace(episode.nodes[1], token_ids=[*tokenizer.encode(text, False), 257])
    episode = msgspec.structs.replace(episode, nodes=[episode.nodes[0], sampled])
    rewards = RewardSet.from_recipe({"each": lambda turn: [Span(k, k + 1, 1.0) for k in range(len(turn.text))]})
    score = await rewards.score(TASK, episode, live=Live(decode=tokenizer.decode))
    assert [(span.first, span.last) for span in score.spans[0]] == [(0, 3), (4, 4), (5, 5), (6, 8), (9, 9)]


@pytest.mark.parametrize("ids", [
    [0xF0, 0x9F, 0xF0, 0x9F, 97], [0xFF] * 9 + [97, 0xC3, 0xA9], [0xE2, 0x82], [257, 0xE2, 257], [],
])  # fmt: skip
def test_bytes_that_are_no_characters_are_counted_as_in_the_text(ids: list[int]) -> None:
    decode = ByteTokenizer().decode
    ends = ends_of(ids, decode)
    texts = [decode(ids[: k + 1]) for k in range(len(ids))]
    assert all(len(text.rstrip("\ufffd")) <= end <= len(text) for text, end in zip(texts, ends, strict=True))
    assert ends[-1:] == [len(text) for text in texts[-1:]]


async def test_the_time_grows_with_the_reply_and_not_with_its_square() -> None:
    text, decoded = "1\n" * 5_000, 0

    def counting(ids: Any) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    rewards = RewardSet.from_recipe({"each": lambda turn: [Span(k, k + 1, 1.0) for k in range(0, 10_000, 2)]})
    score = await rewards.score(TASK, spoken(text), live=Live(decode=counting))
    assert [span.last for span in score.spans[0]] == list(range(0, 10_000, 2))
    assert decoded < 100_000


async def test_spans_of_a_record_without_tokens_have_none() -> None:
    found = await scored(msgspec.structs.replace(spoken("ab"), nodes=[]), {"one": lambda turn: [Span(0, 1, 1.0)]})
    assert found.turns[0].spans == [SpanReward("one", 0, 1, 1.0)]


async def test_places_of_other_libraries_can_be_recorded() -> None:
    found = await scored(spoken("abc"), {"one": lambda turn: [Span(*np.array([1, 3]), np.float32(0.5))]})
    assert msgspec.json.decode(msgspec.json.encode(found), type=Episode) == found
    assert found.turns[0].spans == [SpanReward("one", 1, 3, 0.5, first=1, last=2)]


@pytest.mark.parametrize(("spans", "message"), [
    ([Span(0, 9, 1.0)], "the span 0 to 9 of a text of 3 characters, turn 0"),
    ([Span(1, 1, 1.0)], "the span 1 to 1"),
    ([(0, 1, 1.0)], "something else than Span"),
    ([Span(0, 1, float("nan"))], r"returned nan \(float\)"),
    ([Span(0, 1, cast("float", None))], r"returned None \(NoneType\)"),
    ([Span(0, cast("int", 1.0), 1.0)], r"a span with the place 1.0 \(float\), not a whole number, turn 0"),
])  # fmt: skip
async def test_spans_that_are_none_are_refused(spans: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        await scored(spoken("abc"), {"odd": {"use": lambda turn: spans}})


async def test_a_note_goes_with_spans() -> None:
    found = await scored(spoken("4"), {"lines": {"use": lambda turn: Scored([Span(0, 1, 4.0)], "one line")}})
    assert (found.notes, found.turns[0].rewards) == ({"lines": "turn 0: one line"}, {"lines": 4.0})


async def table_of(*texts: str, **more: Any) -> CreditTable:
    """The table of a group, an episode of one reply for each text."""
    episodes = [await scored(spoken(text), {"lines": lines, **more}) for text in texts]
    return CreditTable.from_episodes(msgspec.structs.replace(e, id=str(k)) for k, e in enumerate(episodes))


async def test_credit_puts_the_reward_of_a_span_on_its_last_token() -> None:
    table = await table_of("1\n2", "6", outcome=lambda task: 1.0)
    # Tokens: `1`, line end, `2`, end of turn; `6`, end of turn. The outcome is on the last of each.
    assert table.span_reward is not None
    assert table.span_reward.tolist() == [1.0, 0.0, 2.0, 0.0, 6.0, 0.0]
    rewards, rest = table.placed(table.step_reward)
    assert (rewards.tolist(), rest.tolist()) == ([1.0, 0.0, 2.0, 0.0, 6.0, 0.0], [1.0, 1.0])
    found = run("gae", table.with_columns(value=[0.0] * 6), whiten=False)
    assert found.token is not None
    assert found.token.tolist() == [4.0, 3.0, 3.0, 1.0, 7.0, 1.0]


async def test_grpo_process_sums_the_normalised_steps_from_here_on() -> None:
    table = await table_of("1\n2", "6")
    # Steps 1, 2 and 6: mean 3, sample deviation sqrt(7).
    found = run("grpo_process", table, eps=0.0).token
    assert found is not None
    assert found.tolist() == pytest.approx([each / 7**0.5 for each in (-3, -1, -1, 0, 3, 0)])
    # Those of an episode count once: weights 1/2, 1/2, 1; mean 15/4.
    equal = run("grpo_process", table, weighting="trajectory", std="none").token
    assert equal is not None
    assert equal.tolist() == pytest.approx([-4.5, -1.75, -1.75, 0.0, 2.25, 0.0])
    # Of 1, 3 and 1 tokens: `1`; line end and `2`; `6`. Mean 11/4.
    by_token = run("grpo_process", table, weighting="token", std="none").token
    assert by_token is not None
    assert by_token.tolist() == pytest.approx([-2.5, -0.75, -0.75, 0.0, 3.25, 0.0])


async def test_without_spans_a_turn_is_a_step() -> None:
    table = CreditTable.from_columns(
        episode=["a", "b"], group=["g", "g"], score=[1, 0], length=[2, 1], reward=[2, 0, 5], tokens=[1, 0, 2]
    )
    # The outcome of `a` comes with a turn without tokens: the step before it gets it.
    found = run("grpo_process", table, std="none").token
    assert found is not None
    assert found.tolist() == [-1.0, 1.0, 1.0]
    other = table.with_columns(span_reward=[0, 5, 0], span_end=[False, True, False])
    found = run("grpo_process", other, std="none").token
    assert found is not None
    assert found.tolist() == [-1.0, 1.0, 0.0]


async def test_capo_reads_the_spans_that_a_critique_marks() -> None:
    def wrong(turn: Turn) -> list[Span]:
        return [Span(at, at + 1, 1.0) for at, letter in enumerate(turn.text) if letter == "x"]

    episodes = [await scored(spoken(text), {"wrong": {"use": wrong, "weight": 0}, "out": lambda task: 1.0})
                for text in ("axb", "ab")]  # fmt: skip
    table = CreditTable.from_episodes(msgspec.structs.replace(e, id=str(k)) for k, e in enumerate(episodes))
    assert table.wrong is not None
    assert table.wrong.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


async def test_capo_takes_a_turn_for_wrong_once_if_the_tokens_of_spans_are_unknown() -> None:
    rewards = RewardSet.from_recipe({"wrong": lambda turn: [Span(0, 1, 1.0), Span(1, 2, 0.5)]})
    episode = (await rewards.score(TASK, spoken("ab"))).onto(spoken("ab"))
    table = CreditTable.from_episodes([msgspec.structs.replace(episode, reward=0.0)])
    assert table.wrong is not None
    assert table.wrong.tolist() == [1.0, 1.0, 1.0]


def test_a_rescored_run_has_the_spans() -> None:
    spans = [SpanReward("lines", 0, 1, 1.0, last=0)]
    episode = spoken("1")
    marked = msgspec.structs.replace(episode, turns=[msgspec.structs.replace(episode.turns[0], spans=spans)])
    assert Rescore.of(marked).onto(episode).turns[0].spans == spans
    assert Rescore.of(episode).onto(marked).turns[0].spans == []


@pytest.mark.slow
def test_spans_of_a_rollout_are_found_again_by_a_later_score(tmp_path: Path) -> None:
    made = agentrl.rollout("prl-coder", 2, script="oracle", out=tmp_path / "run", overrides={"eval": None})
    agentrl.rescore(made, name="later")
    run = RunDir.read(made.path)
    for episode in run.episodes():
        assert [span.last for span in episode.turns[0].spans] == [5, 12, 19]
        assert rescored.of_episode(made.path, episode.id)["later"].spans == [turn.spans for turn in episode.turns]
