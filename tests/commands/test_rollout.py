"""`agentrl rollout`, `check`, `show`, `view` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, python
from tests.sound import assert_sound

pytestmark = pytest.mark.slow


def test_rollout_check_show_view(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "40", "--script", "hasty", "--out", "run", cwd=here)
    report = json.loads(agentrl("check", "run", "--json", cwd=here).stdout)
    assert all(finding["failed"] == 0 for finding in report["invariants"].values())
    listing = agentrl("show", "run", "--sort", "reward", "--limit", "50", cwd=here).stdout
    assert "40 episodes in 40 groups" in listing
    one = agentrl("show", "run", "count7#0", "--tokens", cwd=here).stdout
    assert "Count to 3." in one
    assert "add(" in one
    page = here / "out.html"
    agentrl("view", "run", "--export", str(page), cwd=here)
    assert "count7" in page.read_text()


KILLED = """
import sys
from tests.commands.lives import live
assert live(sys.argv[1:], ("rollout", 10, True)) == 9
"""


def test_a_killed_rollout_goes_on_with_what_is_missing(counting: Path) -> None:
    here, run = counting.parent, counting.parent / "run"
    arguments = ["rollout", "counting", "--n", "60", "--script", "oracle", "--out", "run", "--set", "concurrency=3"]
    python("-c", KILLED, *arguments, cwd=here)
    with RunDir.read(run) as reader:
        before = {episode.id: episode.created_at for episode in reader.episodes()}
    assert len(before) == 10
    assert_sound(here / "run")

    agentrl(*arguments, cwd=here)
    with RunDir.read(run) as reader:
        after = {episode.id: episode.created_at for episode in reader.episodes()}
        assert {row.reward for row in reader.rows()} == {1.0}
    assert len(after) == 60
    assert {id: after[id] for id in before} == before, "what was stored was not run again"
    assert_sound(here / "run")


def test_another_recipe_is_not_mixed_in(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "4", "--script", "oracle", "--out", "run", cwd=here)
    other = agentrl(
        "rollout", "counting", "--n", "4", "--script", "oracle", "--out", "run", "--set", "seed=5", cwd=here, ok=False
    )
    assert other.returncode == 1
    assert "differs in recipe.seed: 0 -> 5" in other.stderr
    assert "to start a new run: --out run-2" in other.stderr


def test_more_episodes_are_added_to_the_same_run(counting: Path) -> None:
    here = counting.parent
    for n in ("4", "9"):
        agentrl("rollout", "counting", "--n", n, "--script", "oracle", "--out", "run", cwd=here)
    with RunDir.read(here / "run") as reader:
        assert len(reader.ids()) == 9


def test_a_failed_episode_runs_again_when_its_cause_is_mended(counting: Path) -> None:
    here = counting.parent
    arguments = ["rollout", "counting", "--n", "6", "--script", "oracle", "--out", "run"]
    broken = (counting / "task.py").read_text()
    (counting / "task.py").write_text(broken.replace("    said = [", "    1 / 0; said = ["))
    failed = agentrl(*arguments, cwd=here, ok=False)
    assert failed.returncode == 1
    assert "6 of 6 episodes (100%) are missing: 6 RewardError" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr
    assert "task.py" in failed.stderr
    agentrl("view", "run", "--export", "page.html", cwd=here)
    with RunDir.read(here / "run") as reader:
        assert {(row.status, row.reward) for row in reader.rows()} == {("user_error", None)}
        assert len(reader.failures()) == 6
    (counting / "task.py").write_text(broken)
    agentrl(*arguments, cwd=here)
    with RunDir.read(here / "run") as reader:
        done = [row for row in reader.rows() if row.status == "done"]
    assert sorted(row.id for row in done) == [f"rollout/{k:06d}-count{k}#0~1" for k in range(6)]
    assert_sound(here / "run")


@pytest.mark.parametrize(
    ("line", "exits", "said"),
    [
        ("import asyncio", "import asyncio, sys; sys.exit(0)", "task.py cannot be imported: SystemExit: 0 at "),
        ("    for k in", "    import sys; sys.exit(0)\n    for k in", "SystemExit: 0"),
        ("    said = [", "    import sys; sys.exit(0); said = [", "6 of 6 episodes (100%) are missing: 6 RewardError"),
    ],
)
def test_user_code_that_exits_with_0_does_not_look_done(counting: Path, line: str, exits: str, said: str) -> None:
    code = (counting / "task.py").read_text()
    (counting / "task.py").write_text(code.replace(line, exits, 1))
    ended = agentrl(
        "rollout", "counting", "--n", "6", "--script", "oracle", "--out", "run", cwd=counting.parent, ok=False
    )
    assert ended.returncode == 1
    assert said in ended.stderr


def test_an_estimator_that_exits_with_0_does_not_look_done(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "2", "--script", "oracle", "--out", "run", cwd=here)
    (counting / "mine.py").write_text("import sys\n\ndef mine(table):\n    sys.exit(0)\n")
    ended = agentrl("credit", "run", "--estimator", "./mine.py:mine", cwd=here, ok=False)
    assert ended.returncode == 1
    assert f"error: {counting / 'mine.py'}:4 in mine: sys.exit(0)" in ended.stderr


def test_a_run_that_misses_episodes_says_how_many_and_why(counting: Path) -> None:
    here = counting.parent
    code = (counting / "task.py").read_text()
    (counting / "task.py").write_text(code.replace("    said = [", "    task.data['to'] == 2 and {}['x']; said = ["))
    arguments = ["rollout", "counting", "--n", "10", "--script", "oracle", "--out", "run"]
    ended = agentrl(*arguments, cwd=here, ok=False)
    assert ended.returncode == 1
    assert "10 episodes, 2 failed  reward mean 1.000" in ended.stdout
    assert "2 of 10 episodes (20%) are missing: 2 RewardError; the last: RewardError: " in ended.stderr
    assert "run the same command again: it adds the missing episodes" in ended.stderr
    (counting / "task.py").write_text(code)
    agentrl(*arguments, cwd=here)


UNCLOSABLE = """
from agentrl.types.sandbox import SandboxUnavailable

class Unclosable:
    name = "unclosable"
    def preflight(self, spec): pass
    async def create(self, spec, *, label=""):
        class Bare:
            async def close(self): pass
        return Bare()
    async def reap(self, *, dry=False): return []
    async def close(self):
        raise SandboxUnavailable("nobody answers any more")
"""


@pytest.mark.parametrize("broken", [False, True])
def test_what_cannot_be_closed_hides_neither_the_result_nor_an_error(counting: Path, broken: bool) -> None:
    code = (counting / "task.py").read_text() + UNCLOSABLE
    code = code.replace("class Counter(Tool):", "class Counter(Tool):\n    needs_sandbox = True")
    code = code.replace("    said = [", "    1 / 0; said = [") if broken else code
    (counting / "task.py").write_text(code)
    backend = ["--set", "sandbox.use=./task.py:Unclosable"]
    sets = [*backend, "--set", "limits.user_errors=2"]
    ended = agentrl(
        "rollout",
        "counting",
        "--n",
        "9",
        "--script",
        "oracle",
        "--out",
        "run",
        *sets,
        cwd=counting.parent,
        ok=not broken,
    )
    assert "warning: Unclosable could not be closed: nobody answers any more" in ended.stderr
    assert ("3 episodes failed by a bug in user code" in ended.stderr) == broken
    assert ("reward mean 1.000" in ended.stdout) == (not broken)


def test_a_replay_says_the_same_tokens(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "8", "--script", "hasty", "--out", "first", cwd=here)
    agentrl("rollout", "counting", "--n", "8", "--replay", "first", "--out", "again", cwd=here)
    runs = []
    for name in ("first", "again"):
        with RunDir.read(here / name) as reader:
            runs.append({e.id: (e.nodes, e.reward, [t.state for t in e.turns]) for e in reader.episodes()})
    assert runs[0] == runs[1]


def test_a_replay_of_a_foreign_run_is_refused_before_anything_is_played(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "4", "--script", "oracle", "--out", "first", cwd=here)
    replay = ["rollout", "counting", "--replay", "first", "--out", "again"]
    refused = agentrl(*replay, "--n", "6", cwd=here, ok=False)
    assert refused.returncode == 1
    assert "error: first: has 4 of the 6 episodes to replay: it lacks " in refused.stderr
    assert "'rollout/000004-count4#0', and has 'rollout/000000-count0#0', ..." in refused.stderr
    assert "Traceback" not in refused.stderr
    with RunDir.read(here / "again") as run:
        assert run.ids() == set()
    agentrl(*replay, "--n", "4", cwd=here)


def test_a_replay_says_what_worked_where_an_episode_ran_twice(counting: Path) -> None:
    """In the run that is replayed, or in the replay."""
    here, code = counting.parent, (counting / "task.py").read_text()
    first = ["rollout", "counting", "--n", "4", "--script", "oracle", "--out", "first"]
    again = ["rollout", "counting", "--n", "4", "--replay", "first", "--out", "again"]
    for command in (first, again):
        (counting / "task.py").write_text(code.replace("    said = [", "    1 / 0; said = ["))
        agentrl(*command, cwd=here, ok=False)
        (counting / "task.py").write_text(code)
        agentrl(*command, cwd=here)
    with RunDir.read(here / "again") as run:
        assert sum(row.status == "done" and row.reward == 1.0 for row in run.rows()) == 4


def test_a_replay_of_a_changed_environment_is_refused(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "8", "--script", "oracle", "--out", "first", cwd=here)
    code = (counting / "task.py").read_text()
    (counting / "task.py").write_text(code.replace("ToolResult(str(self.count)", "ToolResult('now ' + str(self.count)"))
    agentrl("rollout", "counting", "--n", "8", "--replay", "first", "--out", "again", cwd=here, ok=False)
    with RunDir.read(here / "again") as reader:
        errors = [e.error.message for e in reader.episodes() if e.error is not None]
    assert errors
    assert all("differs from the stored one at token" in message for message in errors)


def test_wrong_names_are_explained(counting: Path) -> None:
    here = counting.parent
    for arguments, expected in [
        (["rollout", "counting", "--script", "oracel"], "did you mean 'oracle'?"),
        (["rollout", "countin"], "there is no recipe 'countin'"),
        (["rollout", "counting"], "has no 'model'"),
        (["rollout", "counting", "--script", "oracle", "--replay", "run"], "--script and --replay exclude each other"),
        (["train", "counting", "--from", "run", "--replay", "run"], "--from and --replay exclude each other"),
        (["train", "counting"], "no section 'train'"),
        (["eval", "counting"], "has no 'model'"),
        (["eval", "counting/checkpoints/it-00009"], "there is no 'counting/checkpoints/it-00009'"),
        (["show", "nowhere"], "nowhere"),
        (["check", "nowhere"], "nowhere"),
    ]:
        done = agentrl(*arguments, cwd=here, ok=False)
        assert done.returncode == 1, arguments
        assert expected in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
