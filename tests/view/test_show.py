import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from agentrl.errors import StoreError
from agentrl.store import RunDir
from agentrl.view.show import show_episode, show_run, signed_bar
from agentrl.view.summary import headline, series, summarise
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
    show(*args, console=Console(file=out, width=160), **options)
    assert "\x1b" not in out.getvalue()
    return out.getvalue()


def test_the_summary_counts(run):
    summary = summarise(run)
    assert summary.statuses == {"done": 1, "truncated": 1, "infra_error": 1}
    assert summary.splits["train"].reward == (0.5, 0.0, 1.0)
    assert summary.drift == 1
    assert summary.splits["train"].turns == 2.5
    assert summary.failures == {"SandboxLost": 1, "EngineError": 1}
    outcomes = [call.outcome for row in run.episodes() for turn in row.turns for call in turn.calls]
    assert (summary.calls, summary.call_errors) == (len(outcomes), outcomes.count("error"))


def test_calls_that_went_wrong_are_counted(tmp_path):
    episode = make_episode("a", turns=3)
    for turn, outcome in zip(episode.turns, ("malformed", "timeout", "error"), strict=True):
        turn.calls[0] = msgspec.structs.replace(turn.calls[0], outcome=outcome)
    with RunDir.create(tmp_path / "run") as run:
        run.add(episode)
        assert "3 tool calls  1 malformed  2 failed in the tool" in text_of(show_run, run)


def test_a_run_as_text(run):
    text = text_of(show_run, run)
    for part in ("house", "3 episodes", "reward mean 0.500", "drift in 1", "1 EngineError", "train/0/c", "SandboxLost"):
        assert part in text
    assert "[bold]kitchen[/bold]" in text, "what models say is not markup"


def test_the_list_is_filtered_and_sorted(run):
    assert "train/0/a" not in text_of(show_run, run, status="truncated")
    assert "train/0/b" not in text_of(show_run, run, min_reward=0.5)
    text = text_of(show_run, run, sort="-turns", limit=2)
    assert text.index("train/0/b") < text.index("train/0/a")
    assert "train/0/c" not in text
    with pytest.raises(StoreError, match="cannot be sorted"):
        show_run(run, sort="-beauty")
    with pytest.raises(StoreError, match="did you mean 'truncated'"):
        show_run(run, status="truncatd")
    with pytest.raises(StoreError, match="there are: train"):
        show_run(run, split="validation")


def test_an_episode_as_text(run):
    text = text_of(show_episode, run, "0/b")
    episode = run.get("train/0/b")
    for turn in episode.turns:
        assert turn.text in text
        assert f"→ {turn.calls[0].name}(query=" in text
    for part in ("system: You explore a house.", "drift: context_edit at token 24", "+0.500", "-1.000", "step -0.500"):
        assert part in text
    assert "gone" in text_of(show_episode, run, "c"), "why it failed"


def test_tokens_are_shown_as_ids_or_as_text(run):
    first = run.get("train/0/a").nodes[1].token_ids[0]
    assert f"node 1 after 0, sampled, {len(run.get('train/0/a').nodes[1].token_ids)} tokens" in text_of(
        show_episode, run, "a", tokens=True
    )
    assert f" {first} " in text_of(show_episode, run, "a", tokens=True)
    assert f"<{first}>" in text_of(show_episode, run, "a", tokens=True, decode=lambda id: f"<{id}>")


def test_in_a_terminal_there_is_colour(run):
    console = Console(width=120, force_terminal=True)
    with console.capture() as capture:
        show_episode(run, "b", console, tokens=True)
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
