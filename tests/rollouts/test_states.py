"""States of turns: what names them, the built-in signatures, and bad values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.scripted import Say
from agentrl.registry.kinds import registry_of
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.rollouts.states.registry import LONGEST, Moment, StateRule, bounded, joined
from agentrl.rollouts.states.signatures import history, seen, text, tools
from agentrl.tools.base import Environment, Observation, Tool, tool
from agentrl.types.episode import CallRecord, Episode, TurnDraft
from agentrl.types.errors import RecipeError
from agentrl.types.task import Task
from tests.rollouts.world import collect, make_context, make_parts

HERE = __name__


class Shelf(Tool):
    """Shows pages. It does not know its state."""

    @tool
    async def read(self, page: int) -> str:
        """Read a page.

        Args:
            page: its number.
        """
        return f"page {page}"


class Counter(Tool):
    """Counts, and knows how far."""

    def __init__(self) -> None:
        self.count = 0

    @tool
    async def add(self) -> str:
        """Add one."""
        self.count += 1
        return str(self.count)

    def state_key(self) -> str:
        return f"count={self.count}"


class Voice(Environment):
    """Repeats what is said to it, and does not know its state."""

    async def respond(self, reply: Any) -> Observation:
        return Observation(reply.text, done=reply.text == "bye")


def script(*steps: Any) -> Any:
    """A script that takes these steps, then answers."""

    def play(task: Task, rng: Any) -> Any:
        for step in steps:
            yield step if isinstance(step, Say) else Say(calls=[step])
        yield Say("bye")

    return play


def read(page: int) -> tuple[str, dict[str, Any]]:
    return "read", {"page": page}


ADD = ("add", {})


async def states(tmp_path: Path, state: Any, *steps: Any, tools: Sequence[str] = ("Shelf",)) -> list[str | None]:
    episode = await played(tmp_path, state, *steps, tools=tools)
    assert episode.status == "done", episode.error
    return [turn.state for turn in episode.turns]


async def played(tmp_path: Path, state: Any, *steps: Any, tools: Sequence[str] = ("Shelf",)) -> Episode:
    agent = {} if state is None else {"state": state}
    parts = make_parts(tmp_path, tools=[f"{HERE}:{name}" for name in tools], agent=agent, credit="gigpo")
    return (await collect(make_context(parts, script(*steps)), [EpisodeSpec("e", "g", Task.of("t", "Go."))]))[0]


async def test_seen_is_a_set(tmp_path: Path) -> None:
    one = await states(tmp_path, "seen", read(1), read(2), read(1))
    other = await states(tmp_path, "seen", read(2), read(1), read(2))
    assert one[0] == other[0] != one[1]
    assert one[1] != other[1], "they have seen different pages"
    assert one[2] == other[2], "the order does not count"
    assert one[2] == one[3], "nor does what comes again"


async def test_history_is_a_sequence(tmp_path: Path) -> None:
    one = await states(tmp_path, "history", read(1), Say("I think.", calls=[read(2)]))
    other = await states(tmp_path, "history", read(1), read(2))
    turned = await states(tmp_path, "history", read(2), read(1))
    assert one == other, "the thought before a call does not count"
    assert len({*one, *turned}) == 5, "only the opening is shared"
    thought = await states(tmp_path, {"history": {"thoughts": True}}, read(1), Say("I think.", calls=[read(2)]))
    assert thought[:2] == [*(await states(tmp_path, {"history": {"thoughts": True}}, read(1), read(2)))][:2]
    assert thought[2] != (await states(tmp_path, {"history": {"thoughts": True}}, read(1), read(2)))[2]


async def test_text_is_what_the_turn_answers(tmp_path: Path) -> None:
    assert await states(tmp_path, "text", read(1), read(27)) == ["go.", "page 0", "page 0"]
    exact = {"use": "text", "exact": True, "chars": 4}
    assert await states(tmp_path, exact, read(1), read(27)) == ["Go.", "pa 1", "pa27"]


async def test_tools_are_what_their_kinds_mean(tmp_path: Path) -> None:
    both = ("Counter", "Shelf")
    one = await states(tmp_path, "tools", read(1), ADD, read(2), tools=both)
    other = await states(tmp_path, "tools", ADD, read(2), read(1), tools=both)
    assert [key and key.partition("|")[0] for key in one] == ["count=0", "count=0", "count=1", "count=1"]
    assert one[0] == other[0]
    assert one[2] != other[2], "the same count, and other pages"
    assert one[3] == other[3], "the same count and pages"
    assert await states(tmp_path, "tools", ADD, tools=("Counter",)) == ["count=0", "count=1"]
    alone = await states(tmp_path, "tools", Say("hello"), Say("hello"), tools=("Voice",))
    assert alone[0] != alone[1] == alone[2], "an environment's answers were seen"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a|b", "c"], ["a", "b|c"]),
        ([None, "x"], ["x", None]),
        (["a\\", "b"], ["a", "\\b"]),
        ([None, "x"], [r"\-", "x"]),
    ],
)
def test_parts_of_different_states_never_read_alike(one: list[str | None], other: list[str | None]) -> None:
    assert joined(one) != joined(other)
    assert joined([None, None]) is None
    assert (joined(["a|b"]), joined([""])) == ("a|b", ""), "a single part stays as it is"


async def test_a_signature_is_recorded_whatever_the_credit(tmp_path: Path) -> None:
    """So that estimators with and without states can be compared on one run."""
    for state, recorded in (("seen", True), (None, False)):
        agent = {} if state is None else {"state": state}
        parts = make_parts(tmp_path, tools=[f"{HERE}:Counter"], agent=agent, credit="grpo")
        (episode,) = await collect(make_context(parts, script(ADD)), [EpisodeSpec("e", "g", Task.of("t", "Go."))])
        assert [turn.state is not None for turn in episode.turns] == [recorded] * 2


async def test_without_a_signature_the_tools_name_the_state(tmp_path: Path) -> None:
    assert await states(tmp_path, None, read(1), ADD, tools=("Counter", "Shelf")) == ["count=0", "count=0", "count=1"]
    assert await states(tmp_path, None, read(1)) == [None, None]


def by_pages(moment: Moment, most: int = 9) -> Any:
    """The pages so far."""
    return sorted({call.arguments["page"] for turn in moment.turns for call in turn.calls})[:most]


async def later(moment: Moment) -> Any:
    return len(moment.turns)


def nothing(moment: Moment) -> Any:
    return None


def everything(moment: Moment) -> Any:
    return "x" * (1 << 20) + str(len(moment.turns))


def an_object(moment: Moment) -> Any:
    return {1, 2}


def fails(moment: Moment) -> Any:
    raise KeyError("page")


async def test_a_function_of_the_recipe(tmp_path: Path) -> None:
    own = {"use": f"{HERE}:by_pages", "most": 1}
    assert await states(tmp_path, own, read(3), read(2)) == ["[]", "[3]", "[2]"]
    assert await states(tmp_path, f"{HERE}:later", read(3)) == ["0", "1"]
    assert await states(tmp_path, f"{HERE}:nothing", read(3)) == [None, None]


async def test_a_state_of_a_megabyte_is_hashed(tmp_path: Path) -> None:
    found = await states(tmp_path, f"{HERE}:everything", read(1))
    assert found == await states(tmp_path, f"{HERE}:everything", read(2))
    assert len({*found}) == 2
    assert all(key is not None and len(key) == 32 for key in found)
    assert bounded("x" * LONGEST) == "x" * LONGEST
    assert len(bounded("x" * (LONGEST + 1))) == 32


class Vast(Counter):
    """Its state is a megabyte."""

    def state_key(self) -> str:
        return "y" * (1 << 20) + str(self.count)


async def test_so_is_that_of_a_tool(tmp_path: Path) -> None:
    found = await states(tmp_path, None, ADD, tools=("Vast",))
    assert len({*found}) == 2
    assert all(key is not None and len(key) == 32 for key in found)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("an_object", "the signature tests.rollouts.test_states:an_object returned {1, 2} (set)"),
        ("fails", "KeyError: 'page'"),
    ],
)
async def test_a_signature_that_fails_ends_its_episode(tmp_path: Path, name: str, words: str) -> None:
    episode = await played(tmp_path, f"{HERE}:{name}", read(1))
    assert episode.status == "user_error"
    assert episode.error is not None
    assert words in episode.error.line, episode.error


def no_moment() -> None:
    """Takes nothing."""


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("histori", "did you mean 'history'"),
        ({"history": {"toughts": True}}, "did you mean 'thoughts'"),
        (f"{HERE}:Shelf", "not a function"),
        (f"{HERE}:no_moment", "moment"),
        ("files", "the recipe opens none"),
    ],
)
def test_a_wrong_signature_is_refused(tmp_path: Path, state: Any, words: str) -> None:
    with pytest.raises(RecipeError) as refused:
        make_parts(tmp_path, agent={"state": state})
    assert words in str(refused.value)
    assert "agent.state" in str(refused.value)


def test_a_program_has_no_states(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'state' does not reach a program"):
        make_parts(tmp_path, agent={"program": ["true"], "state": "history"})


def test_the_built_in_signatures_are_listed() -> None:
    assert {"tools", "files", "seen", "history", "text"} == registry_of("states").all().keys()


def test_signatures_read_any_result() -> None:
    """Images count by their file, and calls that failed by what was shown."""
    picture = {"type": "image", "blob": "ab"}
    calls = [
        CallRecord(id="1", name="look", arguments={}, outcome="error", result="no", duration_s=0, images=[picture])
    ]
    shown = [{"role": "tool", "content": [{"type": "text", "text": "no"}, picture]}]
    turn = TurnDraft(index=0, node=0, text="", finish="stop", calls=calls, observations=shown)
    moments = [Moment(Task.of("t", "Go."), turns=[turn])]
    changed = {**picture, "blob": "cd"}
    calls = [
        CallRecord(id="1", name="look", arguments={}, outcome="error", result="no", duration_s=0, images=[changed])
    ]
    shown = [{"role": "tool", "content": [{"type": "text", "text": "no"}, changed]}]
    moments.append(
        Moment(
            Task.of("t", "Go."),
            turns=[TurnDraft(index=0, node=0, text="", finish="stop", calls=calls, observations=shown)],
        )
    )
    for signature in (seen, history, text):
        assert signature(moments[0]) != signature(moments[1]), signature


async def test_a_moment_without_tools_has_no_state_of_tools() -> None:
    assert await tools(Moment(Task.of("t", "Go."))) is None
    assert await StateRule().key(Moment(Task.of("t", "Go."))) is None
