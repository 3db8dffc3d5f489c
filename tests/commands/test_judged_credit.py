"""Pref-GRPO, PPR and CAPO from a recipe with a judge: rollout, group, credit, with a judge that fails now and then."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.api.credit import credit
from agentrl.store.run_dir import RunDir

pytestmark = pytest.mark.slow  # judges groups over HTTP


class Judge(BaseHTTPRequestHandler):
    """Prefers the shorter transcript, likes turns that count by 1, and finds those that count by 3 wrong.

    Every third request fails at first, and some replies cannot be read.
    """

    requests: list[str] = []
    failed: set[str] = set()
    broken = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        prompt, vote = json.loads(body)["messages"][0]["content"], json.loads(body)["seed"]
        key = f"{vote} {prompt}"
        Judge.requests.append(key)
        fails = Judge.broken or (len(Judge.requests) % 3 == 0 and key not in Judge.failed)
        Judge.failed.add(key)
        content = json.dumps({"choices": [{"message": {"content": said(prompt, vote)}}]}).encode()
        self.send_response(503 if fails else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


def within(tag: str, prompt: str) -> str:
    return prompt.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def said(prompt: str, vote: int) -> str:
    if "<answer_a>" in prompt:
        a, b = (within(f"answer_{name}", prompt).count("[turn ") for name in "ab")
        return json.dumps({"better": "tie" if a == b else "A" if a < b else "B"})
    if "<turn>" in prompt:
        return '{"score": 10}' if '"by": 1' in within("turn", prompt) else '{"score": 4}'
    if vote == 3:
        return "I would rather not"
    turns = re.split(r"\[turn \d+\]", within("transcript", prompt))[1:]
    strict = vote > 0  # the first critique overlooks the first turn
    return json.dumps({"wrong": [k for k, turn in enumerate(turns) if '"by": 3' in turn and (k or strict)]})


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[dict[str, Any]]:
    Judge.requests, Judge.failed, Judge.broken = [], set(), False
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        yield {"url": url, "model": "m", "cache": str(tmp_path / "judged"), "backoff_s": 0.0}
        server.shutdown()


@pytest.fixture(autouse=True)
def _within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def play(out: str, rewards: dict, credit: dict | str, **more: Any) -> RunDir:
    overrides = {"rewards": rewards, "credit": credit, "agent.max_turns": 5, **more}
    agentrl.rollout("counting", 6, group_size=3, script="hasty", out=out, reporters=(), overrides=overrides)
    return RunDir.read(out)


def test_pref_grpo(counting: Path, judge: dict) -> None:
    rewards = {"win_rate": {"judge": judge, "reads": "transcript"}}
    with play("run", rewards, "pref_grpo") as run:
        episodes = list(run.episodes())
    groups = {episode.group_id for episode in episodes}
    for group in groups:
        members = [e for e in episodes if e.group_id == group]
        for one in members:
            others = [e for e in members if e.id != one.id]
            beats = [(len(one.turns) < len(e.turns)) + 0.5 * (len(one.turns) == len(e.turns)) for e in others]
            assert one.components["win_rate"] == pytest.approx(sum(beats) / 2)
    assert len({e.components["win_rate"] for e in episodes}) > 1
    found = credit("run")
    by_id = {credit.episode_id: credit.turn_advantages[0] for credit in found.credits}
    best = max(episodes, key=lambda e: e.components["win_rate"])
    worst = min(episodes, key=lambda e: e.components["win_rate"])
    assert by_id[best.id] > 0 > by_id[worst.id]
    asked = len(Judge.requests)
    with play("again", rewards, "pref_grpo") as again:
        assert {e.id: e.components for e in again.episodes()} == {e.id: e.components for e in episodes}
    assert len(Judge.requests) == asked  # all pairs are answered from the verdicts on disk


def test_ppr(counting: Path, judge: dict) -> None:
    rewards = {
        "exact": "./task.py:exact",
        "process": {"use": "rubric_judge", "reads": "turn", "judge": judge, "weight": 0},
    }
    with play("run", rewards, {"use": "ppr", "baseline": "group"}) as run:
        episodes = list(run.episodes())
    for episode in episodes:
        by = [turn.calls[0].arguments["by"] for turn in episode.turns]
        assert [turn.rewards["process"] for turn in episode.turns] == [1.0 if each == 1 else 0.4 for each in by]
        assert episode.reward == episode.components["exact"]
    found = credit("run")
    assert any(any(credit.turn_advantages) for credit in found.credits)


def test_capo(counting: Path, judge: dict) -> None:
    critique = {"use": "critique", "judge": {**judge, "votes": 4, "temperature": 0.7}, "weight": 0}
    with play("run", {"exact": "./task.py:exact", "wrong": critique}, {"use": "capo", "vote": "majority"}) as run:
        episodes = list(run.episodes())
    shares = set()
    for episode in episodes:
        for turn in episode.turns:
            three = turn.calls[0].arguments["by"] == 3
            # 3 of 4 critiques can be read; the first of them overlooks the first turn.
            assert turn.rewards["wrong"] == pytest.approx(three * (2 / 3 if turn.index == 0 else 1.0))
            shares.add(turn.rewards["wrong"])
    assert len(shares) > 1
    assert "3 of 4 critiques read" in episodes[0].notes["wrong"]
    assert any(any(each.turn_advantages) for each in credit("run").credits)


def test_a_judge_that_is_away_leaves_the_group_for_the_same_command(counting: Path, judge: dict) -> None:
    Judge.broken = True
    rewards = {"win_rate": {"judge": judge, "reads": "transcript"}}
    quick = {"limits.backoff_s": 0.0, "limits.retries": 1}
    with play("run", rewards, "pref_grpo", **quick) as run:
        assert {e.reward for e in run.episodes()} == {None}
        failures = run.failures()
        assert {(f["status"], f["attempt"], f["final"]) for f in failures} == {
            ("infra_error", 0, False), ("infra_error", 1, True),
        }  # fmt: skip
    Judge.broken = False
    with play("run", rewards, "pref_grpo", **quick) as run:
        assert None not in {e.reward for e in run.episodes()}
