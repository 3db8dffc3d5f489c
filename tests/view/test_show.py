import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

from agentrl.store import RunDir
from agentrl.store.index import SORTS
from agentrl.types.episode import Branch, Context, ErrorRecord
from agentrl.types.errors import StoreError
from agentrl.view.show import show_episode, show_run, signed_bar
from agentrl.view.summary import headline, series, summarise
from agentrl.view.terminal import Unwrapped, Visible
from agentrl.view.web.endpoints import answer
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.query import Query
from tests.store.make import make_episode


@pytest.fixture
def run(tmp_path: Path):
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "house"}}) as run:
        run.add(make_episode("train/0/a", turns=2, reward=1.0, answer="[bold]kitchen[/bold]"))
        run.add(make_episode("train/0/b", turns=3, reward=0.0, branch=True, status="truncated"))
        run.add(make_episode("train/0/c", turns=1, status="infra_error"))
        run.add_credit("train/0/b", "gigpo", [0.5, -1.0, 0.0], {"step": [0.25, -0.5, 0.0]})
        run.add_failure({"kind": "EngineError"})
        yield run


def text_of(show, *args, **options) -> str:
    out = io.StringIO()
    console = Console(file=out, width=160)
    for part in show(*args, **options):
        console.print(Visible(part), soft_wrap=isinstance(part, Unwrapped))
    assert "\x1b" not in out.getvalue()
    return out.getvalue()


def test_the_summary_counts(run):
    summary = summarise(run)
    assert summary.statuses == {"done": 1, "truncated": 1, "infra_error": 1}
    assert summary.splits["train"].reward == (0.5, 0.0, 1.0)
    assert (summary.drift, summary.branches, summary.contexts) == (0, 1, 0)
    assert summary.splits["train"].turns == 2.5
    assert summary.failures == {"SandboxLost": 1, "EngineError": 1}
    outcomes = [call.outcome for row in run.episodes() for turn in row.turns for call in turn.calls]
    assert (summary.calls, summary.bad_calls["refused"]) == (len(outcomes), outcomes.count("error"))
    assert summary.failed == 1


def test_calls_that_went_wrong_are_counted(tmp_path):
    """Apart: what the model did wrong, what the tool answered, and what is a bug in the tool."""
    outcomes = ("malformed", "unknown", "error", "timeout", "raised", "raised")
    with RunDir.create(tmp_path / "run") as run:
        for name, line in (("a", 3), ("b", 3), ("c", 7)):
            episode = make_episode(name, turns=6)
            for turn, outcome in zip(episode.turns, outcomes, strict=True):
                raised = f"KeyError: {line} at /shop/task.py:{line} in search" if outcome == "raised" else ""
                turn.calls[0] = msgspec.structs.replace(turn.calls[0], outcome=outcome, raised=raised)
            run.add(episode)
        text = text_of(show_run, run)
        one = text_of(show_episode, run, "c")
    assert (
        "18 tool calls  3 malformed  3 of unknown tools  3 refused by the tool  3 timed out  "
        "6 raised an exception (a bug in the tool)\n"
        "  KeyError: 3 at /shop/task.py:3 in search\n"
        "  KeyError: 7 at /shop/task.py:7 in search\n"
    ) in text
    assert "KeyError: 7 at /shop/task.py:7 in search" in one


def test_where_the_whole_of_a_cut_result_is_kept_is_told(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        sha = run.put_blob(b"whole")
        run.add(make_episode("a", blob=sha))
        text = text_of(show_episode, run, "a").replace("\n", "")
    named = text.partition("characters cut; whole in ")[2].partition(")")[0]
    assert (run.path / named).read_bytes() == b"whole"


def test_of_every_kind_of_failure_the_first_is_told(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("fine", turns=2, reward=1.0))
        for number, kind in enumerate(("KeyError", "KeyError", "EngineError")):
            place = "/shop/task.py:31 in cheapest" if kind == "KeyError" else ""
            error = ErrorRecord(kind=kind, message=f"no {number}", stage="score", place=place)
            run.add(make_episode(f"bad{number}", turns=1, status="user_error", error=error))
            run.add_failure({"episode": f"bad{number}", "final": True, **msgspec.structs.asdict(error)})
        text = text_of(show_run, run)
        assert "failures: 2 KeyError  1 EngineError\n" in text
        assert "  KeyError: no 0 at /shop/task.py:31 in cheapest (stage score, episode bad0)\n" in text
        assert "  EngineError: no 2 (stage score, episode bad2)\n" in text
        assert "EPISODE shows a failed one with its traceback" in text


def test_a_run_in_which_everything_failed_says_so(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for number in range(3):
            run.add(make_episode(f"bad{number}", turns=0, status="user_error"))
        text = text_of(show_run, run)
    assert "train: 3 episodes, all failed: none is scored" in text
    assert "turns an episode" not in text


def test_a_run_as_text(run):
    text = text_of(show_run, run)
    for part in (
        "house",
        "3 episodes",
        "reward mean 0.500",
        "branches in 1 episodes",
        "1 EngineError",
        "train/0/c",
        "SandboxLost",
    ):
        assert part in text
    assert "[bold]kitchen[/bold]" in text, "what models say is not markup"


def test_splits_come_in_the_order_of_a_training(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for number, split in enumerate(["eval", "eval", "train", "mine", "demo"]):
            run.add(make_episode(str(number), turns=1, reward=1.0, split=split))
        assert list(summarise(run).splits) == ["demo", "train", "eval", "mine"]


def test_the_list_is_filtered_and_sorted(run):
    assert "train/0/a" not in text_of(show_run, run, status="truncated")
    assert "train/0/b" not in text_of(show_run, run, min_reward=0.5)
    failed = text_of(show_run, run, max_reward=0.5)
    assert "train/0/b" in failed
    assert "train/0/a" not in failed
    assert "train/0/c" not in failed, "it is not scored"
    text = text_of(show_run, run, sort="turns", desc=True, limit=2)
    assert text.index("train/0/b") < text.index("train/0/a")
    assert "train/0/c" not in text
    with pytest.raises(StoreError, match="cannot be sorted"):
        text_of(show_run, run, sort="beauty")
    with pytest.raises(StoreError, match="did you mean 'truncated'"):
        text_of(show_run, run, status="truncatd")
    with pytest.raises(StoreError, match="there are: train"):
        text_of(show_run, run, split="validation")


def test_one_iteration_is_listed(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for iteration in range(3):
            run.add(make_episode(f"train/{iteration}/a", turns=1, reward=1.0, iteration=iteration))
        text = text_of(show_run, run, iteration=0)
    assert "train/0/a" in text
    assert "train/1/a" not in text
    assert "train/2/a" not in text


def test_the_page_lists_every_column_that_sorts():
    page = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text()
    table = page.partition("## Columns")[2].partition("## A live run")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*SORTS}


def test_demonstrations_are_listed_only_when_asked_for(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for split in ("demo", "train"):
            run.add(make_episode(f"{split}/0", turns=1, reward=1.0, split=split))
        text = text_of(show_run, run, sort="reward")
        asked = text_of(show_run, run, split="demo")
    assert "train/0" in text
    assert "demo/0" not in text
    assert "(1 demonstrations are not listed; --split demo shows them)" in text
    assert "demo/0" in asked
    assert "train/0" not in asked
    assert "not listed" not in asked


def test_an_episode_as_text(run):
    text = text_of(show_episode, run, "0/b")
    episode = run.get("train/0/b")
    for turn in episode.turns:
        assert turn.text in text
        assert f"→ {turn.calls[0].name}(query=" in text
    for part in ("system: You explore a house.", "branch: rewrite at token 24", "+0.500", "-1.000", "step -0.500"):
        assert part in text
    assert "gone" in text_of(show_episode, run, "c"), "why it failed"


def test_only_a_turn_that_did_not_end_by_itself_says_how_it_ended(tmp_path: Path) -> None:
    episode = make_episode("train/0/a", turns=2)
    cut = msgspec.structs.replace(episode.turns[1], finish="length")
    with RunDir.create(tmp_path / "run") as run:
        run.add(msgspec.structs.replace(episode, turns=[episode.turns[0], cut]))
        text = text_of(show_episode, run, "a")
    assert (text.count("[length]"), text.count("[stop]")) == (1, 0)


@pytest.mark.parametrize(("value", "style"), [(0.5, "green"), (0.0, ""), (-0.5, "red")])
def test_the_colour_of_a_reward_is_that_of_its_sign(tmp_path: Path, value: float, style: str) -> None:
    episode = make_episode("train/0/a", turns=1)
    paid = msgspec.structs.replace(episode.turns[0], rewards={"paid": value}, reward=value)
    with RunDir.create(tmp_path / "run") as run:
        run.add(msgspec.structs.replace(episode, turns=[paid]))
        texts = [part for part in show_episode(run, "a") if isinstance(part, Text) and f"{value:.3f}" in part.plain]
    spans = [(text.plain[span.start : span.end], str(span.style)) for text in texts for span in text.spans]
    assert [found for shown, found in spans if shown == f"{value:.3f}"] == ([style] if style else [])


def test_an_episode_has_the_reward_and_the_turns_that_its_row_has(tmp_path: Path) -> None:
    """The outcome is 0.5, and turns earned 0.25; of the four turns another speaker spoke one."""
    episode = make_episode("a")
    turns = [msgspec.structs.replace(turn, reward=0.125 * (turn.index < 2)) for turn in episode.turns]
    turns[-1] = msgspec.structs.replace(turns[-1], context="user")
    user = Context(role="user", prompt=[], policy="user")
    with RunDir.create(tmp_path / "run", {}) as run:
        run.add(msgspec.structs.replace(episode, reward=0.5, turns=turns, contexts={"user": user}))
        (row,) = run.rows()
        text = text_of(show_episode, run, "a")
    assert row.reward == 0.75
    assert row.turns == len(turns) - 1
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache")
    assert answer(library, "episode", Query({"run": "run", "id": "a"}))["reward"] == 0.75
    library.close()
    assert "reward 0.750" in text


LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}  # fmt: skip


def test_long_prompts_are_folded_and_the_tools_are_there(tmp_path):
    rules = "A" * 2000 + "middle" + "Z" * 2000
    opening = [{"role": "system", "content": rules}, {"role": "user", "content": "Find it."}]
    branch = Branch(turn=1, reason="edit", at_token=9, messages=[*opening, {"role": "user", "content": "Go on."}])
    with RunDir.create(tmp_path / "run", {"tools": [LOOK]}) as run:
        run.add(make_episode("a", turns=2, prompt=opening, branches=[branch]))
        run.add(make_episode("own", turns=1, tools=[]))
        folded, whole = (text_of(show_episode, run, "a", whole=whole).replace("\n", "") for whole in (False, True))
        own = text_of(show_episode, run, "own")
    assert "tools:  - look(query: string)" in folded
    assert ("middle" in folded, "middle" in whole) == (False, True)
    assert "[2006 characters; --whole shows them]" in folded
    assert "Z" * 160 in folded
    assert "branch: edit at token 9" in folded
    assert "(2 messages as at the beginning)user: Go on." in folded
    assert "tools:\n  none" in own


def test_tokens_are_shown_as_ids_or_as_text(run):
    first = run.get("train/0/a").nodes[1].token_ids[0]
    assert f"node 1 after 0, sampled, {len(run.get('train/0/a').nodes[1].token_ids)} tokens" in text_of(
        show_episode, run, "a", tokens=True
    )
    assert f" {first} " in text_of(show_episode, run, "a", tokens=True)
    assert f"<{first}>" in text_of(show_episode, run, "a", tokens=True, decode=lambda id: f"<{id}>")


ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\x7f\u202eright to left"


def attacking(value):
    """A copy of a record in which every text that may be anything begins with what controls a terminal."""
    if isinstance(value, str):
        return f"{ATTACK}{value}"
    if isinstance(value, list):
        return [attacking(each) for each in value]
    if isinstance(value, dict):
        return {attacking(key): attacking(each) for key, each in value.items()}
    if isinstance(value, msgspec.Struct):
        own = {"id", "kind", "status", "split", "outcome", "finish", "estimator", "group_id", "blob", "reason"}
        fields = {name: attacking(getattr(value, name)) for name in value.__struct_fields__ if name not in own}
        return msgspec.structs.replace(value, **fields)
    return value


def test_what_an_agent_wrote_controls_no_terminal(tmp_path):
    with RunDir.create(tmp_path / "run", {"recipe": {"name": ATTACK}}) as run:
        for number, status in enumerate(("done", "user_error")):
            episode = attacking(make_episode(f"e{number}", turns=3, status=status, branch=True))
            calls = [msgspec.structs.replace(turn.calls[0], outcome="raised", raised=ATTACK) for turn in episode.turns]
            turns = [
                msgspec.structs.replace(turn, calls=[call]) for turn, call in zip(episode.turns, calls, strict=True)
            ]
            error = ErrorRecord(kind="KeyError", message=ATTACK, stage=ATTACK, place=ATTACK, traceback=ATTACK)
            extra = {"error": error, "answer": None, "reward": None} if status == "user_error" else {"answer": ATTACK}
            run.add(msgspec.structs.replace(episode, turns=turns, **extra))
            run.add_failure({"episode": f"e{number}", "final": True, **msgspec.structs.asdict(error)})
        texts = [text_of(show_run, run)]
        texts += [text_of(show_episode, run, name, tokens=True, decode=lambda _: ATTACK) for name in ("e0", "e1")]
    for text in texts:
        assert "right to left" in text
        assert all(char.isprintable() or char == "\n" for char in text)
        assert "\u202e" not in text
    assert "␛]0;owned" in texts[1]


def test_in_a_terminal_there_is_colour(run):
    console = Console(width=120, force_terminal=True)
    with console.capture() as capture:
        for part in show_episode(run, "b", tokens=True):
            console.print(Visible(part))
    assert "\x1b[" in capture.get()


def test_a_bar_points_up_or_down():
    assert signed_bar(1.0, 1.0).plain == " " * 12 + "│" + "█" * 12 + " +1.000"
    assert signed_bar(-0.5, 1.0).plain == " " * 6 + "█" * 6 + "│" + " " * 12 + " -0.500"
    assert "█" not in signed_bar(0.0, 0.0).plain


def test_series_take_the_last_value_of_a_repeated_iteration():
    metrics = [
        {"iteration": 1, "reward": 0.5, "name": "x", "flag": True},
        {"iteration": 0, "reward": 0.1, "sample": {"age": 2}},
        {"iteration": 1, "reward": 0.7, "nan": float("nan"), "none": None},
        {"iteration": 1, "split": "eval", "success": 0.3},
    ]
    curves = series(metrics)
    assert curves == {
        "reward": [(0.0, 0.1), (1.0, 0.7)],
        "sample/age": [(0.0, 2.0)],
        "eval/success": [(1.0, 0.3)],
    }
    assert headline(curves) == "eval/success"
    assert headline({"loss": []}) is None


def test_who_speaks_in_a_context_is_shown(tmp_path: Path) -> None:
    episode = make_episode("train/0/game", turns=2, reward=1.0)
    turns = [episode.turns[0], msgspec.structs.replace(episode.turns[1], context="them")]
    them = Context(role="second", prompt=[{"role": "user", "content": "7 left"}], policy="past", version=15)
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "nim"}}) as run:
        run.add(msgspec.structs.replace(episode, turns=turns, contexts={"them": them}))
        assert "context them, past after 15 updates" in text_of(show_episode, run, "train/0/game")
