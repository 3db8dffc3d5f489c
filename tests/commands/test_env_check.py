"""`agentrl env check`: a good environment passes, and each way of being broken is named."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.api.certify.certificate import Certificate, environment_of
from agentrl.api.certify.check import ABOUT, check_environment, runs_folder
from agentrl.api.certify.findings import Finding
from agentrl.api.recipe_check import check as check_recipe
from agentrl.api.recipes import given_recipe
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError, StoreError, TaskError
from tests.command import agentrl

ORDERS = '''
import itertools, random
from agentrl import Environment, Say, Task, ToolError, tool

FAULT = {fault!r}
counter, seen, shared = itertools.count(), set(), {{}}

def orders(n=6):
    for k in range(n):
        nothing = FAULT == "empty" and k == 2
        yield Task.of(f"order{{k}}", f"Cancel the order A{{k}}.", order=f"A{{k}}", nothing=nothing)

class Desk(Environment):
    def open(self, task, sandbox):
        self.state = shared if FAULT == "shared" else {{}}
        self.number, self.first = next(counter), "0" if task.id not in seen else "1"
        seen.add(task.id)

    def state_key(self):
        state = str(sorted(self.state))
        return {{"keys": f"{{self.number}} {{state}}", "one key": "same"}}.get(FAULT, state)

    @tool
    def look(self, order: str) -> str:
        """Look at an order.

        Args:
            order: its number
        """
        return f"{{order}}: {{self.state.get(order, 'open')}}" + (f" ({{self.number}})" if FAULT == "clock" else "")

    @tool
    def cancel(self, order: str) -> str:
        """Cancel an order.

        Args:
            order: its number
        """
        if FAULT == "fragile" and not isinstance(order, str) or FAULT == "fragile" and not order.startswith("A"):
            raise KeyError(order)
        self.state[order] = "cancelled"
        return "Done."

def settled(task, env):
    if FAULT == "noise":
        return 1.0 + random.random() / 10
    if FAULT == "junk" and env.state:
        return 1.0
    if FAULT == "gold" and task.id == "order4":
        return 0.0
    return float(task.data["nothing"] or env.state == {{task.data["order"]: "cancelled"}})

def noisy(task, episode):
    return 1.0 + random.random() / 10

def oracle(task, rng):
    yield Say(calls=[("look", {{"order": task.data["order"]}})])
    yield Say(calls=[("cancel", {{"order": task.data["order"]}})])
    yield Say("Done.")
'''
RECIPE = """
name: orders
tasks: ./task.py:orders
agent: {max_turns: 6, format: hermes}
tools: [./task.py:Desk]
rewards: {settled: ./task.py:settled}
scripts: {oracle: ./task.py:oracle}
"""


def written(folder: Path, code: str, recipe: str = RECIPE) -> Path:
    folder.mkdir()
    (folder / "task.py").write_text(code)
    (folder / "recipe.yaml").write_text(recipe)
    return folder


def by_check(found: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in found}


@pytest.mark.slow
@pytest.mark.family("certificates")
def test_a_good_environment_is_certified_beside_its_recipe(tmp_path: Path) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault=""))
    told = agentrl("env", "check", "orders", "--store", "--json", cwd=tmp_path)
    certificate = json.loads(told.stdout)
    assert certificate.pop("runs") == "runs/orders-env-check/version-1"
    assert (tmp_path / "runs/orders-env-check/version-1/oracle/run.json").exists()
    states = {finding["check"]: finding["state"] for finding in certificate["findings"]}
    assert certificate["certified"]
    assert certificate["tasks"] == 6
    assert states["grade cannot be forged"] == "not applicable"
    assert {state for check, state in states.items() if "forged" not in check} <= {"pass", "unknown"}
    assert json.loads((recipe / "orders.certificate.json").read_text()) == certificate
    assert (check_recipe(str(recipe), []).certificate or "").startswith("certified on 6 tasks, ")
    with (recipe / "task.py").open("a") as file:
        file.write("changed = 1\n")
    assert (check_recipe(str(recipe), []).certificate or "").endswith("before the environment changed")
    (recipe / "orders.certificate.json").write_text("{}")
    with pytest.raises(StoreError, match="is not a certificate"):
        check_recipe(str(recipe), [])


@pytest.mark.slow
@pytest.mark.family("certificates")
def test_an_interrupted_check_goes_on_and_one_that_ended_is_played_anew(tmp_path: Path) -> None:
    recipe, out = written(tmp_path / "orders", ORDERS.format(fault="")), tmp_path / "runs"

    def oracle_played() -> set[float]:
        (run,) = out.glob("*/oracle")
        with RunDir.read(run) as played:
            return {episode.created_at for episode in played.episodes()}

    def stop(finding: Finding) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_environment(recipe, out=out, note=stop)
    first = oracle_played()
    check_environment(recipe, out=out)
    assert oracle_played() == first
    check_environment(recipe, out=out)
    assert not oracle_played() & first


def test_each_version_of_an_environment_has_a_folder_of_runs(tmp_path: Path) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault=""))

    def folder() -> Path:
        found = runs_folder(given_recipe(recipe), tmp_path / "runs")
        found.mkdir(parents=True, exist_ok=True)
        (found / ABOUT).write_text(environment_of(given_recipe(recipe)))
        return found.relative_to(tmp_path)

    assert folder() == folder() == Path("runs/version-1")
    (recipe / "task.py").write_text(ORDERS.format(fault="gold"))
    assert folder() == Path("runs/version-2")
    (recipe / "task.py").write_text(ORDERS.format(fault=""))
    assert folder() == Path("runs/version-1"), "an earlier version"


@pytest.mark.slow
@pytest.mark.family("certificates")
@pytest.mark.parametrize(
    ("fault", "check", "task", "reason"),
    [
        ("gold", "gold passes", "order4", "reward 0.0"),
        ("empty", "empty fails", "order2", "passes: reward 1.0"),
        ("junk", "junk fails", None, "passes: reward 1.0"),
        ("fragile", "junk fails", None, "KeyError"),
        ("clock", "reset and tools repeat", "order0", "turn 0, after"),
        ("keys", "state keys repeat", "order0", "turn 0: "),
        ("one key", "state keys repeat", None, ""),
        ("shared", "gold passes", "order1", "reward 0.0"),
        ("noise", "reset and tools repeat", "order0", "the reward of the same actions: 1."),
    ],
)
def test_a_broken_environment_fails_by_name(
    tmp_path: Path, fault: str, check: str, task: str | None, reason: str
) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault=fault))
    certificate = check_environment(recipe, out=tmp_path / "runs")
    finding = by_check(certificate.findings)[check]
    assert finding.state == "fail", certificate
    assert not certificate.certified
    if task is not None:
        assert reason in finding.tasks[task]
    elif reason:
        assert any(reason in told for told in finding.tasks.values())


DOORS = """
from agentrl import Say

class Doors:
    def reset(self, seed):
        self.prize = seed % 2
        return "Two doors: 0 and 1."

    def step(self, action):
        {guard}
        won = int(action) == self.prize
        return "The prize." if won else "Nothing.", float(won), True, {{"success": won}}

def oracle(task, rng):
    yield Say(str(task.data["seed"] % 2))
"""
GAME = """
name: doors
tasks: {source: "agentrl.tools.builtin.games.tasks:seeds", args: {n: 12, instruction: Find the prize.}}
agent: {max_turns: 3}
tools: [{game: {library: "./task.py:Doors", act: text}}]
rewards: {score: "agentrl.tools.builtin.games.game:score"}
scripts: {oracle: "./task.py:oracle"}
limits: {backoff_s: 0}
"""


@pytest.mark.slow
@pytest.mark.family("certificates")
@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ("pass", r"infra_error: MoveFailed: .*ValueError: invalid literal .* at \S+/task.py:11 in step"),
        ("if not action.isdigit(): return None", "infra_error: MoveFailed: Doors.step returned None"),
    ],
)
def test_a_game_that_breaks_in_every_episode_does_not_stop_the_check(tmp_path: Path, guard: str, reason: str) -> None:
    recipe = written(tmp_path / "doors", DOORS.format(guard=guard), GAME)
    certificate = check_environment(recipe, out=tmp_path / "runs")
    found = by_check(certificate.findings)
    assert not certificate.certified
    assert {check for check, finding in found.items() if finding.state == "fail"} == {"junk fails", "random runs"}
    assert found["gold passes"].says == "12 of 12 tasks"
    assert "a signal to learn from" in found
    assert re.match(reason, next(iter(found["junk fails"].tasks.values())))


COUNT = """
import itertools
from agentrl import Environment, Observation, Say, Task

FAULT = {fault!r}
counter = itertools.count()

def tasks(n=6):
    for k in range(n):
        yield Task.of(f"t{{k}}", "Count.")

class Desk(Environment):
    shared = 0

    def open(self, task, sandbox):
        Desk.shared = 0
        self.made = next(counter) if FAULT == "counter" else 0

    def state_key(self):
        return object() if FAULT == "object" else str(self.made)

    def respond(self, reply):
        if FAULT == "boom":
            raise KeyError("boom")
        self.made += 1
        Desk.shared += 1
        return Observation(f"{{Desk.shared if FAULT == 'shared' else self.made}}")

def won(task, episode):
    return float(episode.turns[-1].text == "say 3")

def oracle(task, rng):
    for k in range(4):
        yield Say(f"say {{k}}")
"""
COUNTED = """
name: count
tasks: ./task.py:tasks
agent: {max_turns: 4}
tools: [./task.py:Desk]
rewards: {won: ./task.py:won}
scripts: {oracle: ./task.py:oracle}
"""
ISOLATED = "episodes do not see each other"
FAILED = "nothing to compare: all episodes failed"


@pytest.mark.parametrize(
    ("fault", "check", "state", "says", "reason"),
    [
        ("", ISOLATED, "pass", "6 of 6 tasks", ""),
        ("", "empty fails", "pass", "0 of 6 episodes solved; mean reward 0", ""),
        ("shared", ISOLATED, "fail", " of 6 tasks", "turn "),
        ("counter", "reset and tools repeat", "fail", "0 of 6 tasks", "turn 0, after"),
        ("counter", ISOLATED, "unknown", "no task repeats when it is played alone", ""),
        ("boom", "reset and tools repeat", "unknown", FAILED, ""),
        ("boom", "state keys repeat", "unknown", FAILED, ""),
        ("boom", ISOLATED, "unknown", FAILED, ""),
        ("boom", "gold passes", "fail", "0 of 6 tasks", r"user_error: KeyError: 'boom' at \S+/task.py:24 in respond"),
        ("boom", "empty fails", "fail", "0 of 6 episodes solved, 6 raised an exception; mean reward none", "user_er"),
        ("object", "state keys repeat", "fail", "state_key failed on 6 of 6 tasks", r".*state_key\(\) returned <obj"),
    ],
)
def test_a_check_that_can_compare_nothing_does_not_pass(
    counted: Callable[[str], Certificate], fault: str, check: str, state: str, says: str, reason: str
) -> None:
    finding = by_check(counted(fault).findings)[check]
    assert finding.state == state, finding
    assert finding.says.endswith(says)
    assert bool(finding.tasks) == bool(reason)
    assert all(re.match(reason, told) for told in finding.tasks.values())


def test_an_unknown_line_does_not_prevent_a_certificate(counted: Callable[[str], Certificate]) -> None:
    certificate = counted("")
    assert certificate.certified
    assert "unknown" in {finding.state for finding in certificate.findings}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Certificate]:
    """The certificate of the counting environment with a fault, checked once."""

    @functools.cache
    def certificate(fault: str) -> Certificate:
        folder = tmp_path_factory.mktemp("count")
        recipe = written(folder / "count", COUNT.format(fault=fault), COUNTED)
        return check_environment(recipe, out=folder / "runs")

    return certificate


@pytest.mark.slow
@pytest.mark.family("certificates")
def test_a_grader_that_does_not_repeat_is_found(tmp_path: Path) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault=""))
    changed = {"rewards.settled": "./task.py:noisy"}
    finding = by_check(check_environment(recipe, overrides=changed, out=tmp_path / "runs").findings)["grader repeats"]
    assert finding.state == "fail"
    assert ", then 1." in finding.tasks["order0"]


@pytest.mark.slow
@pytest.mark.family("certificates")
def test_a_check_of_fewer_tasks_is_about_these(tmp_path: Path) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault="gold"))  # order4 fails
    assert not check_environment(recipe, out=tmp_path / "runs").certified
    fewer = check_environment(recipe, 3, out=tmp_path / "runs")
    assert (fewer.certified, fewer.tasks) == (True, 3)


def test_a_certificate_is_about_code_data_and_limits(tmp_path: Path) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault=""))

    def now(**overrides: object) -> str:
        return environment_of(given_recipe(str(recipe), overrides))

    before = now()
    said = ("README.md", "curve.png", "other.yaml", "orders.certificate.json", "runs/one/run.json", "runs/one/some.db")
    for name in said:
        (recipe / name).parent.mkdir(parents=True, exist_ok=True)
        (recipe / name).write_text("1")
        assert now() == before, name
    for name in ("tasks.jsonl", "data/more/table.csv", "helpers/shop.py"):
        (recipe / name).parent.mkdir(parents=True, exist_ok=True)
        (recipe / name).write_text("1")
        assert now() != before, name
        before = now()
    task = recipe / "task.py"
    task.write_text(f'"""Orders."""\n\n{task.read_text()}  # a comment\n\n"Words."\n')
    assert now() == before, "words are no code"
    task.write_text(task.read_text() + "'words'.title()\n")
    assert now() != before
    before = now()
    assert now(**{"limits.observation_chars": 100}) != before
    assert now(**{"train.lr": 0.5}) == before


TESTED = """
from agentrl import Say, Task

def bugs(n=2):
    for k in range(n):
        yield Task.of(f"bug{{k}}", f"add.py is wrong. Repair it.", sandbox={{"files": {{
            "add.py": "def add(a, b):\\n    return a - b\\n",
            "test_add.py": "from add import add\\nassert add(2, 3) == 5\\n",
            "tests/test.sh": "python3 test_add.py && echo 1 > reward.txt\\n"}}}})

async def repaired(task, sandbox):
    {grade}

def oracle(task, rng):
    yield Say(calls=[("shell", {{"command": "sed -i 's/a - b/a + b/' add.py"}})])
    yield Say("Done.")
"""
GRADES = {
    "honest": (
        'program = "import sys; sys.path.append(\\".\\"); from add import add; print(add(2, 3), add(-1, 9))"\n'
        '    done = await sandbox.exec(["/usr/bin/python3", "-I", "-S", "-c", program], timeout_s=10)\n'
        '    return float(done.stdout == b"5 8\\n")'
    ),
    "reads a file": (
        'await sandbox.exec(["sh", "tests/test.sh"], timeout_s=10)\n'
        '    done = await sandbox.exec(["cat", "reward.txt"], timeout_s=10)\n    return float(done.stdout == b"1\\n")'
    ),
    "exit code": 'return float((await sandbox.exec(["python3", "test_add.py"], timeout_s=10)).ok)',
}
SANDBOXED = """
name: bugs
tasks: ./task.py:bugs
agent: {max_turns: 4, format: hermes}
tools: [shell]
rewards: {repaired: ./task.py:repaired}
scripts: {oracle: ./task.py:oracle}
"""


@pytest.mark.slow
@pytest.mark.family("certificates")
@pytest.mark.parametrize(
    ("grade", "forged"),
    [
        ("honest", set()),
        ("reads a file", {"reward file", "reward file again", "rewritten tests", "early exit"}),
        ("exit code", {"rewritten tests", "early exit"}),
    ],
)
def test_a_grade_that_can_be_forged_is_found(tmp_path: Path, grade: str, forged: set[str]) -> None:
    recipe = written(tmp_path / "bugs", TESTED.format(grade=GRADES[grade]), SANDBOXED)
    found = by_check(check_environment(recipe, 1, out=tmp_path / "runs").findings)
    assert found["gold passes"].state == "pass"
    prefix = "grade cannot be forged: "
    by_attack = {check.removeprefix(prefix): finding for check, finding in found.items() if check.startswith(prefix)}
    assert len(by_attack) == 6
    assert {attack for attack, finding in by_attack.items() if finding.state == "fail"} == forged


@pytest.mark.slow
@pytest.mark.family("certificates")
@pytest.mark.parametrize(
    ("grade", "states"),
    [("honest", ("pass", "pass")), ("reads a file", ("fail", "fail")), ("exit code", ("pass", "fail"))],
)
def test_files_are_forged_where_no_tool_runs_commands(tmp_path: Path, grade: str, states: tuple[str, str]) -> None:
    certificate = check_environment(file_bugs(tmp_path, grade), 1, out=tmp_path / "runs")
    found = by_check(certificate.findings)
    attacks = ("written files", "edited files")
    assert tuple(found[f"grade cannot be forged: {attack}"].state for attack in attacks) == states
    assert certificate.certified == ("fail" not in states)


@pytest.mark.slow
@pytest.mark.family("certificates")
def test_an_attack_that_can_do_nothing_proves_nothing(tmp_path: Path) -> None:
    """The task's files come with the recipe, where the forger does not see them."""
    folder = file_bugs(tmp_path, "exit code")
    code = (folder / "task.py").read_text()
    start, end = code.index(', sandbox={"files": '), code.index("})\n\nasync")
    files = code[start + len(', sandbox={"files": ') : end]
    (folder / "task.py").write_text(code[:start] + code[end + 1 :])
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + f"sandbox: {{spec: {{files: {json.dumps(ast.literal_eval(files))}}}}}\n")
    found = by_check(check_environment(folder, 1, out=tmp_path / "runs").findings)
    assert found["gold passes"].state == "pass"
    edited = found["grade cannot be forged: edited files"]
    assert (edited.state, edited.says) == ("unknown", "no call of the attack succeeded")


@pytest.mark.slow
@pytest.mark.family("certificates")
def test_a_sandbox_whose_tools_are_of_no_known_kind_is_not_said_to_be_safe(tmp_path: Path) -> None:
    code = TESTED.format(grade=GRADES["exit code"]).replace("from agentrl import Say, Task", OWN_TOOL)
    code = code.replace("""("shell", {"command": "sed -i 's/a - b/a + b/' add.py"})""", """("repair", {})""")
    recipe = written(tmp_path / "bugs", code, SANDBOXED.replace("[shell]", "[./task.py:Repair]"))
    finding = by_check(check_environment(recipe, 1, out=tmp_path / "runs").findings)["grade cannot be forged"]
    says = "the tools may write in the sandbox, and no attack is known with them"
    assert (finding.state, finding.says) == ("unknown", says)


OWN_TOOL = """from agentrl import Say, Task, Tool, tool

class Repair(Tool):
    needs_sandbox = True

    async def open(self, task, sandbox):
        self.sandbox = sandbox

    @tool
    async def repair(self) -> str:
        "Repairs the program."
        await self.sandbox.exec(["sed", "-i", "s/a - b/a + b/", "add.py"], timeout_s=10)
        return "done"
"""


def file_bugs(tmp_path: Path, grade: str) -> Path:
    """The recipe whose agent edits files and cannot run them."""
    code = TESTED.format(grade=GRADES[grade]).replace(
        """("shell", {"command": "sed -i 's/a - b/a + b/' add.py"})""",
        """("replace_in_file", {"path": "add.py", "old": "a - b", "new": "a + b"})""",
    )
    return written(tmp_path / "bugs", code, SANDBOXED.replace("[shell]", "[files]"))


@pytest.mark.slow
@pytest.mark.family("certificates")
def test_a_task_that_fails_is_left_out_by_name(tmp_path: Path) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault="gold"))
    without = {"tasks.exclude": {"order4": "the grader gives 0 to its solution"}}
    certificate = check_environment(recipe, overrides=without, out=tmp_path / "runs")
    assert (certificate.certified, certificate.tasks) == (True, 5)
    with pytest.raises(TaskError, match="has no task 'order9'"):
        check_environment(recipe, overrides={"tasks.exclude": {"order9": "?"}}, out=tmp_path / "runs")


def test_without_an_oracle_nothing_can_be_said(tmp_path: Path) -> None:
    recipe = written(tmp_path / "orders", ORDERS.format(fault=""), RECIPE.replace("oracle:", "other:"))
    with pytest.raises(RecipeError, match="has no script 'oracle'"):
        check_environment(recipe, out=tmp_path / "runs")
