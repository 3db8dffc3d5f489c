"""Every built-in reward, and a gate, by name from a recipe: played with a real sandbox, stored, scored again, shown."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agentrl.commands.plug_ins import plug_ins
from agentrl.estimators.table import CreditTable
from agentrl.rewards.registry import REWARDS
from agentrl.store import rescored
from agentrl.store.run_dir import RunDir
from tests.command import agentrl

pytestmark = pytest.mark.slow

TASK = """
from agentrl.engines.scripted import Say
from agentrl.types.task import Task
from agentrl.tools.base import Tool, ToolResult, tool

PATCH = "--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-a\\n+b\\n"
DATA = dict(
    answer="4", tests=["assert f(2) == 4"], state=[{"file": "note.txt", "equals": "4"}], sql="SELECT 4",
    database="CREATE TABLE t (a); ", patch=PATCH, actions=[{"type": "look"}], evidence=["red fox"], reference="5",
    steps=[], box=[0, 0, 4, 4], size=[8, 8],
)

class World(Tool):
    needs_sandbox = True
    async def open(self, task, sandbox): self.sandbox = sandbox
    @tool
    async def look(self) -> ToolResult:
        await self.sandbox.write("note.txt", "4")
        return ToolResult("a red fox", rewards={"looked": 0.5})
    @tool
    async def answer(self, answer: str) -> ToolResult:
        return ToolResult("", done=True, answer=answer)

def tasks():
    return [Task.of(f"t{k}", "What is 2 + 2?", **DATA) for k in range(2)]

def oracle(task, rng):
    yield Say(calls=[("look", {})])
    yield Say(calls=[("answer", {"answer": "4"})])

def mine(task, episode) -> float:
    return float(episode.answer == "4")

def broken(task, episode):
    raise KeyError("gone")

def early(turn) -> float:
    return float(turn.index == 0)
"""

SETTINGS: dict[str, dict] = {
    "router_cost": {"prices": {"look": 1.0}, "high": 2.0},
    "frugal_search": {"max_searches": 2, "search_tools": ["look"]},
    "laser": {"target": 10_000},
    "long_reply": {"longest": 1},
    "contrast": {"right": "exact_match", "mark": "never"},
    "tool_reward": {},
    "cosine_length": {"max_tokens": 10**9},
    "laser_d": {"right": "exact_match", "first": 10_000},
    "mean_advantage": {"of": ["exact_match"]},
    "criteria_judge": {"criteria": ["It is a number."]},
    "supported_facts": {"key": "evidence"},
    "cited_quality": {"of": "dynamic_rubric"},
}
JUDGED = (
    "rubric_judge",
    "pairwise_judge",
    "win_rate",
    "critique",
    "criteria_judge",
    "supported_facts",
    "dynamic_rubric",
)
EXPECTED: dict[str, float | list[float | None] | None] = {
    "exact_match": 1.0, "f1": 1.0, "numeric": 1.0, "maths": 1.0, "code_tests": 0.0, "state_check": 1.0,
    "sql_execution": 0.0, "sql_partial": 0.0, "sql_syntax": 0.0, "sql_schema": 0.0, "sql_ngrams": 0.0,
    "patch_similarity": -1.0, "format": 1.0, "turn_format": [1.0, 1.0],
    "tool_success": 1.0, "tool_reward": [None, None], "gui_action": [1.0, None],
    "gui_type": 1.0, "gui_point": 1.0, "gui_text": 1.0, "gui_format": 1.0, "gui_success": 1.0,
    "evidence_judgement": [None, None], "base_routing": [None, 1.0], "answer_recall": 1.0,
    "retrieval_recall": 1.0, "retrieval_utility": [1.0, 0.0], "brier": 0.0, "router_cost": 0.55, "frugal_search": 2.0,
    "search_planning": 0.98, "laser": 0.5, "overlong": 0.0, "unary_feedback": [0.0, 1.0], "rubric_judge": 0.7,
    "pairwise_judge": 0.5, "majority_vote": 1.0, "relative_length": 0.0, "diversity": 0.0, "win_rate": 0.5,
    "critique": [1.0, 0.0], "frequency": 1.0, "answer_entropy": 0.0, "contrast": 0.0, "long_reply": 1.0,
    "accepted": 0.0, "format_f1": 1.0, "tries": 0.0, "cosine_length": 1.0, "laser_d": 0.5, "mean_advantage": 0.0,
    "lexical_diversity": 0.6875, "token_confidence": 1.0, "bleu": 1.0, "chrf": 1.0, "criteria_judge": 1.0,
    "group_bleu": 1.0, "reward_model": 0.25, "supported_facts": 1.0,
    "box_iou": 0.0, "box_look": 0.0, "box_distance": 0.0, "counterfactual": None, "dynamic_rubric": -1.0,
    "cited_quality": [0.0, 0.0],
}  # fmt: skip
"""What one look and a right answer earn; the answer 4 is no code, query, patch or confidence; scripts are sure."""


class Grader(BaseHTTPRequestHandler):
    """Grades 7 of 10, finds all pairs equal, the first turn wrong by its one criterion, one fact, supported; as a
    reward model 0.25."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        content = (
            '{"criteria": ["It is right."]} {"verdicts": [["fail", [0]]]} '
            '{"score": 7} {"better": "tie"} {"wrong": [0]} {"met": [1]} {"supported": true} {"facts": ["It is 4."]}'
        )
        reply = json.dumps({"score": 0.25, "choices": [{"message": {"content": content}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[dict]:
    with HTTPServer(("127.0.0.1", 0), Grader) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"url": f"http://127.0.0.1:{server.server_port}/v1", "model": "m", "cache": str(tmp_path / "judge")}
        server.shutdown()


def write_recipe(folder: Path, **sections) -> None:
    (folder / "task.py").write_text(TASK)
    recipe = {
        "name": "all", "tasks": "./task.py:tasks", "tools": ["./task.py:World"], "agent": {"max_turns": 3},
        "scripts": {"oracle": "./task.py:oracle"}, **sections,
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


def test_every_reward_by_name(tmp_path: Path, judge: dict) -> None:
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    foreign = {"harbor", "guest", "swe_tests", "trl_environment"}  # tests/integrations
    asks_the_policy = {"outcome_potential"}  # test_reward_potential.py
    assert set(EXPECTED) == set(REWARDS.built_in) - foreign - asks_the_policy
    judged: dict[str, dict] = {name: {"judge": judge} for name in JUDGED}
    judged["reward_model"] = {"scorer": {"url": judge["url"], "model": "m"}}
    rewards = {name: {**SETTINGS.get(name, {}), **judged.get(name, {})} for name in EXPECTED}
    write_recipe(tmp_path, rewards=rewards)
    agentrl("recipe", "check", ".", cwd=tmp_path)
    agentrl("rollout", ".", "--script", "oracle", "-n", "4", "--group-size", "2", "--out", "run", cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        episodes = list(run.episodes())
    assert [episode.status for episode in episodes] == ["done"] * 4, episodes[0].error
    for episode in episodes:
        found = {**episode.components}
        for name in (name for name, value in EXPECTED.items() if isinstance(value, list)):
            found[name] = [turn.rewards[name] for turn in episode.turns]
        for name, value in EXPECTED.items():
            assert found[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    # And again, from the stored run: the same scores, of what needs the live sandbox the recorded one.
    agentrl("rescore", "run", "--recipe", ".", cwd=tmp_path)
    for id, score in rescored.load(tmp_path / "run", "again").items():
        before = next(episode for episode in episodes if episode.id == id)
        assert score.components == before.components
        assert score.reward == pytest.approx(before.reward)
        assert score.turn_rewards == [turn.reward for turn in before.turns]
        assert score.notes["state_check"] == "as recorded: it needs the sandbox of the episode"


def test_a_run_is_scored_again_by_gates_and_never_rewritten(tmp_path: Path) -> None:
    write_recipe(tmp_path, rewards={"exact_match": None, "early": {"use": "./task.py:early", "weight": 0.1}})
    agentrl("rollout", ".", "--script", "oracle", "-n", "2", "--out", "run", cwd=tmp_path)
    shards = {path.name: path.read_bytes() for path in (tmp_path / "run" / "episodes").iterdir()}
    strict = {
        "rewards": {"mine": "./task.py:mine", "turn_format": {"weight": 2}, "looked": {"use": "tool_reward"}},
        "gate": [{"on": "looked", "above": 0.5}],
    }
    write_recipe(tmp_path, **strict)
    done = agentrl("rescore", "run", "--recipe", ".", "--name", "strict", "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (result["episodes"], result["scored"], result["failed"]) == (2, 2, [])
    assert result["components"]["mine"] == {"recorded": None, "new": 1.0, "unscored": 0}
    assert result["components"]["reward"] == {"recorded": 1.6, "new": 0.5, "unscored": 0}, "with those of turns"
    with RunDir.read(tmp_path / "run") as run:
        before = list(run.episodes())
        after = list(rescored.rescored(before, rescored.load(run.path, "strict")))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run" / "episodes").iterdir()} == shards
    # Recorded: 0.1 for the first turn, and 0.5 that the tool gave. Again: the gate on 0.5 > 0.5 zeroes all others.
    assert CreditTable.from_episodes(before).reward.tolist() == pytest.approx([0.6, 0.0] * 2)
    assert CreditTable.from_episodes(after).reward.tolist() == pytest.approx([0.5, 0.0] * 2)
    assert CreditTable.from_episodes(after).score.tolist() == [0.0, 0.0]
    assert [sorted(turn.rewards) for turn in after[0].turns] == [["looked", "turn_format"]] * 2, "early is gone"
    shown = agentrl("show", "run", before[0].id, cwd=tmp_path).stdout
    assert "rewards 'strict': reward 0.500" in shown
    assert "gate looked > 0.5 shut (0.5): mine, turn_format not counted" in shown
    agentrl("view", "run", "--export", "page.html", cwd=tmp_path)
    page = (tmp_path / "page.html").read_text()
    assert '"rescored":{"strict":' in page
    # The same name by other rewards is refused; the same command again has nothing to do.
    agentrl("rescore", "run", "--recipe", ".", "--name", "strict", cwd=tmp_path)
    other = agentrl(
        "rescore", "run", "--recipe", ".", "--name", "strict", "--set", "rewards.mine.weight=3", cwd=tmp_path, ok=False
    )
    assert "by other rewards" in other.stderr


@pytest.mark.parametrize(("sections", "messages"), [
    ({"rewards": {"exact_match": {"wieght": 1}}}, ["exact_match has no setting 'wieght'"]),
    ({"rewards": {"exact_match": None}, "gate": [{"on": "exact", "at_least": 1}]}, ["gate.0.on", "'exact_match'"]),
    ({"rewards": {"exact_match": None}, "gate": [{"on": "exact_match"}]}, ["exactly one of 'at_least' and 'above'"]),
    ({"rewards": {"laser": None}}, ["rewards.laser.target: laser needs the setting 'target'"]),
    ({"rewards": {"f1": {"then": [{"clip": 3}]}}}, ["rewards.f1.then.0.clip"]),
])  # fmt: skip
def test_recipe_check_names_the_place(tmp_path: Path, sections: dict, messages: list[str]) -> None:
    write_recipe(tmp_path, **sections)
    done = agentrl("recipe", "check", ".", cwd=tmp_path, ok=False)
    assert done.returncode == 1
    for message in messages:
        assert message in done.stderr


def test_the_live_sandbox_cannot_be_had_again(tmp_path: Path) -> None:
    write_recipe(tmp_path, rewards={"exact_match": None})
    agentrl("rollout", ".", "--script", "oracle", "-n", "1", "--out", "run", cwd=tmp_path)
    write_recipe(tmp_path, rewards={"state_check": None})
    done = agentrl("rescore", "run", "--recipe", ".", cwd=tmp_path, ok=False)
    assert "'state_check' needs the sandbox as the agent left it, which is gone" in done.stderr
    # Nothing was scored, so the name is still free.
    write_recipe(tmp_path, rewards={"exact_match": None})
    assert "1 of 1 episodes" in agentrl("rescore", "run", "--recipe", ".", cwd=tmp_path).stdout


AWAY = """
from agentrl.types.sandbox import SandboxUnavailable

async def looked(task, episode, fresh_sandbox):
    await fresh_sandbox()
    return 1.0

class Away:
    name = "away"
    def preflight(self, spec): pass
    async def create(self, spec, *, label=""):
        raise SandboxUnavailable("nobody answers", remedy="start it")
    async def reap(self, *, dry=False): return []
    async def close(self): pass
"""


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (
            3,
            r"the sandboxes of 3 episodes in a row failed; the last: nobody answers at .*task.py:\d+ in create\n",
        ),
        (9, r"4 of 4 episodes could not be scored; the last: nobody answers\n  -> the same command tries them again"),
    ],
)
def test_a_dead_backend_stops_a_scoring_or_is_told_at_its_end(tmp_path: Path, most: int, told: str) -> None:
    write_recipe(tmp_path, rewards={"exact_match": None})
    agentrl("rollout", ".", "--script", "oracle", "-n", "4", "--out", "run", cwd=tmp_path)
    limits, backend = {"sandbox_s": 0.05, "sandbox_failures": most}, {"use": "./task.py:Away"}
    write_recipe(tmp_path, rewards={"looked": "./task.py:looked"}, sandbox=backend, limits=limits)
    (tmp_path / "task.py").write_text(TASK + AWAY)
    done = agentrl("rescore", "run", "--recipe", ".", cwd=tmp_path, ok=False)
    assert done.returncode == 1
    assert re.search(told, done.stderr), done.stderr


def test_episodes_that_are_not_scored_are_counted(tmp_path: Path) -> None:
    write_recipe(tmp_path, rewards={"broken": "./task.py:broken"})
    agentrl("rollout", ".", "--script", "oracle", "-n", "2", "--out", "run", cwd=tmp_path, ok=False)
    write_recipe(tmp_path, rewards={"exact_match": None})
    refused = agentrl("rescore", "run", "--recipe", ".", cwd=tmp_path, ok=False).stderr
    assert "holds no done or truncated episode (2 user_error)" in refused


def test_a_function_that_was_changed_is_another_scoring(tmp_path: Path) -> None:
    write_recipe(tmp_path, rewards={"mine": "./task.py:mine"})
    agentrl("rollout", ".", "--script", "oracle", "-n", "2", "--out", "run", cwd=tmp_path)
    agentrl("rescore", "run", "--recipe", ".", cwd=tmp_path)
    code = tmp_path / "task.py"
    code.write_text(code.read_text().replace("return float(episode.answer", "return 5.0 * (episode.answer"))
    assert "by other rewards" in agentrl("rescore", "run", "--recipe", ".", cwd=tmp_path, ok=False).stderr
    code.write_text(code.read_text().replace("return 5.0 * (episode", "raise KeyError('code')  # (episode"))
    failed = agentrl("rescore", "run", "--recipe", ".", "--name", "new", cwd=tmp_path, ok=False).stderr
    assert "raised KeyError: 'code'" in failed
    assert "task.py:" in failed
    assert "never retrieved" not in failed


def test_the_list_names_all() -> None:
    rows = plug_ins("rewards")
    assert {row["name"] for row in rows} == set(REWARDS.built_in)
    assert all(row["does"] and row["source"] for row in rows)
    page = (Path(__file__).parents[2] / "docs" / "reward-functions.md").read_text()
    assert not [name for name in REWARDS.built_in if f"`{name}`" not in page]
