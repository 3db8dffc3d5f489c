"""Lines of `agentrl show` that a run or an episode has only if something out of the ordinary happened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agentrl.store import RunDir
from agentrl.store.reader import RunReader
from agentrl.types.episode import POLICY, Context, Drift, Episode, Usage
from agentrl.view.show import show_episode, show_run
from tests.store.make import make_episode
from tests.view.test_show_tasks import said


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def shown(folder: Path, episode: Episode) -> str:
    """The text of an episode, in a run that holds it alone."""
    with RunDir.create(folder / "run") as run:
        run.add(episode)
        return said(show_episode(run, episode.id))


def turn_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("● turn")]


def test_drift_is_told_before_the_turn_that_it_happened_in(tmp_path: Path) -> None:
    episode = make_episode("a", turns=2)
    text = shown(tmp_path, replace(episode, drift=[Drift(turn=1, kind="retokenisation", at_token=41)]))
    told = text.index("drift: retokenisation at token 41")
    assert text.index("● turn 0") < told < text.index("● turn 1")


def test_tools_that_change_in_an_episode_are_listed_from_that_turn_on(tmp_path: Path) -> None:
    episode = make_episode("a", turns=2)
    text = shown(tmp_path, replace(episode, turns=[episode.turns[0], replace(episode.turns[1], tools=[tool("dig")])]))
    (listed,) = re.findall(r"tools from here on:\s+- dig\(query: string\)", text)
    assert text.index("● turn 0") < text.index(listed) < text.index("● turn 1")


def test_a_conversation_of_the_policy_lists_its_tools_and_names_no_speaker(tmp_path: Path) -> None:
    episode = make_episode("a", turns=2)
    reader = Context(
        role="reader", prompt=[{"role": "user", "content": "Read it."}], policy=POLICY, tools=[tool("open_page")]
    )
    turns = [episode.turns[0], replace(episode.turns[1], context="reader")]
    text = shown(tmp_path, replace(episode, turns=turns, contexts={"reader": reader}))
    opening = text.partition("● turn 0")[2].partition("● turn 1")[0]
    assert re.search(r"─ context reader ─", opening)
    assert re.search(r"tools:\s+- open_page\(query: string\)\s+user: Read it\.", opening)


def test_a_turn_of_an_api_shows_its_tokens_and_cost(tmp_path: Path) -> None:
    episode = make_episode("a", turns=2)
    paid = replace(episode.turns[0], usage=Usage(prompt_tokens=1200, completion_tokens=34, cost=0.01234))
    first, second = turn_lines(shown(tmp_path, replace(episode, turns=[paid, episode.turns[1]])))
    assert "1200+34 tokens, 0.01234" in first
    assert "tokens" not in second


def test_a_turn_shows_the_seconds_that_its_engine_reported(tmp_path: Path) -> None:
    episode = make_episode("a", turns=3)
    both, one, none = episode.turns
    turns = [replace(both, queue_s=0.25, decode_s=1.5), replace(one, decode_s=2.0), none]
    first, second, third = turn_lines(shown(tmp_path, replace(episode, turns=turns)))
    assert "queued 0.25 s, decoded 1.50 s" in first
    assert "decoded 2.00 s" in second
    assert "queued" not in second
    assert "decoded" not in third


def test_an_episode_that_waits_for_its_group_says_for_which_score(tmp_path: Path) -> None:
    waits = make_episode("a", turns=1, reward=None, pending=["best_of_group", "diversity"])
    assert "waits for the score of its group: best_of_group, diversity" in shown(tmp_path, waits)
    assert "waits" not in shown(tmp_path / "scored", make_episode("a", turns=1))


def test_credit_of_0_is_no_lack_of_signal_if_the_rewards_of_the_group_differ(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        for name, reward in (("alike", 1.0), ("differ", 0.0)):
            run.add(make_episode(f"{name}/0", group=name, turns=1, reward=1.0))
            run.add(make_episode(f"{name}/1", group=name, turns=1, reward=reward))
            run.add_credit(f"{name}/0", "grpo", [0.0], {})
        assert "which is no signal" in said(show_episode(run, "alike/0"))
        assert "which is no signal" not in said(show_episode(run, "differ/0"))


def test_an_episode_without_the_value_that_sorts_the_list_has_a_dash_and_is_last(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        for name in ("none", "credited"):
            run.add(make_episode(name, turns=1, answer="cellar"))
        run.add_credit("credited", "grpo", [0.75], {})
        rows = [line.split() for line in said(show_run(run, sort="advantage")).splitlines() if "cellar" in line]
    assert [(row[0], row[-2]) for row in rows] == [("credited", "0.750"), ("none", "-")]


def test_groups_whose_episodes_began_differently_are_counted(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        for group, asked in (("mixed", ("red", "blue")), ("alike", ("red", "red"))):
            for member, word in enumerate(asked):
                prompt = [{"role": "user", "content": f"Find the {word} key."}]
                run.add(make_episode(f"{group}/{member}", group=group, turns=1, prompt=prompt))
        text = said(show_run(run))
    assert "1 groups whose episodes were shown different things first" in text


def test_damaged_records_are_named_with_the_command_that_examines_them(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        for name in ("broken", "intact"):
            run.add(make_episode(name, turns=1))
    (shard,) = (tmp_path / "run" / "episodes").iterdir()
    data = bytearray(shard.read_bytes())
    data[60:90] = bytes(30)
    shard.write_bytes(data)
    for index in (tmp_path / "run").glob("index.sqlite*"):
        index.unlink()  # it is rebuilt from the records
    with RunReader(tmp_path / "run") as run:
        text = said(show_run(run))
    assert f"damaged records: episodes/{shard.name}@0 (see `agentrl check`)" in text
    assert "1 episodes in 1 groups" in text
