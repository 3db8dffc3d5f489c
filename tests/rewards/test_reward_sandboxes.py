"""Rewards that need a sandbox, in real ones."""

# ruff: noqa: E501 - one line of the code a line

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.rewards import RewardError, RewardSet
from agentrl.rewards.functions.code import code_tests
from agentrl.rewards.functions.state import state_check
from agentrl.sandbox.helper import Helper
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.sandbox.pool import Pool
from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.sandbox import SandboxSpec
from agentrl.types.task import Task
from tests.beat import beside_the_loop
from tests.rewards.make import make_episode, turn

pytestmark = [pytest.mark.slow, pytest.mark.family("verifiers")]


@pytest.fixture
async def backend() -> AsyncIterator[NamespaceBackend]:
    backend = NamespaceBackend()
    yield backend
    await backend.close()


def fresh(backend):
    return lambda: backend.create(SandboxSpec(), label="verify")


DOUBLE = "def double(x):\n    return 2 * x\n"
PROGRAM = "print(int(input()) * 2)\n"


@pytest.mark.parametrize(("answer", "tests", "partial", "passed"), [
    (f"Here:\n```python\n{DOUBLE}```", ["assert double(2) == 4", "assert double('a') == 'aa'"], False, 1.0),
    (DOUBLE, ["assert double(2) == 4", "assert double(2) == 5"], False, 0.0),
    (DOUBLE, ["assert double(2) == 4", "assert double(2) == 5"], True, 0.5),
    ("import sys; sys.exit(0)", ["assert False"], False, 0.0),
    ("import os; os._exit(0)", ["assert False"], False, 0.0),
    ("def double(", ["assert double(2) == 4"], True, 0.0),
    (PROGRAM, [{"input": "2", "output": "4\n"}, {"input": "5\n", "output": "10"}], False, 1.0),
    (PROGRAM, [{"input": "2", "output": "5"}], False, 0.0),
    ("while True: pass", [{"input": "2", "output": "5"}], False, 0.0),
    (DOUBLE, {"files": {"check.py": "import solution; assert solution.double(1) == 2"}, "command": "python3 check.py"},
     False, 1.0),
    (None, ["assert True"], False, 0.0),
])  # fmt: skip
@pytest.mark.parametrize("isolation", ["process", "none"])
async def test_code_of_an_answer(backend, answer, tests, partial, passed, isolation):
    limit = 2.0 if answer and "while True" in answer else 60.0
    task = Task.of("t", "", tests=tests)
    rewards = RewardSet.from_recipe({"code_tests": {"partial": partial, "isolation": isolation, "timeout_s": limit}})
    scored = await rewards.score(task, make_episode(task, answer=answer), None, fresh(backend))
    assert scored.components == {"code_tests": passed}
    assert not backend._alive, "the component's sandboxes were closed"


async def test_files_are_taken_from_the_agent_and_its_tests_are_not(backend):
    """The agent patched the test and the interpreter's search path; neither comes along."""
    tests = {"files": {"test_it.py": "from it import double\nassert double(2) == 4\n"}, "command": "python3 test_it.py"}
    task = Task.of("t", "", tests=tests)
    rewards = RewardSet.from_recipe({"code_tests": {"files": ["it.py", "test_it.py"]}})
    assert rewards.needs_fresh_sandbox
    assert not rewards.needs_sandbox
    assert rewards.components[0].costs == ("sandbox",)
    for code, passed in (("def double(x): return 2 * x", 1.0), ("def double(x): return 3", 0.0)):
        async with await backend.create(SandboxSpec()) as agents:
            await agents.write("it.py", code)
            await agents.write("test_it.py", "print('all good')")
            await agents.write("random.py", "raise SystemExit(0)")
            scored = await rewards.score(task, make_episode(task), agents, fresh(backend))
        assert scored.components == {"code_tests": passed}
    assert not backend._alive, "the component's sandbox was closed"


async def test_what_the_code_needs_of_the_task_is_shared_and_the_tests_are_not(backend):
    tests = {
        "files": {"check.py": "from it import f\nassert f() == (['table.txt'], 4)\n"},
        "shared": {
            "data/table.txt": "4",
            "library.py": "import os\ndef load(): return int(open('data/table.txt').read())",
        },
        "command": "python3 check.py",
    }
    code = "import os, library\ndef f(): return os.listdir('data'), library.load() if not os.path.exists('check.py') else 0"
    task = Task.of("t", "", tests=tests)
    async with await backend.create(SandboxSpec()) as agents:
        await agents.write("it.py", code)
        scored = await RewardSet.from_recipe({"code_tests": {"files": ["it.py"]}}).score(
            task, make_episode(task), agents, fresh(backend)
        )
    assert scored.total == 1.0, scored.notes


async def test_several_files_a_package_and_data_of_the_agent(backend):
    left = {
        "src/shop/__init__.py": "from .cart import Cart\nVERSION = '1'\n",
        "src/shop/cart.py": "from .prices import price\nclass Cart:\n    def total(self, *names): return sum(map(price, names))\n",
        "src/shop/prices.py": "import json\nPRICES = json.load(open('prices.json'))\ndef price(name): return PRICES[name]\n",
        "prices.json": '{"tea": 3, "cup": 4}',
        "conftest.py": "import os; os._exit(0)",
    }
    check = "import json, os, sys\nsys.path.insert(0, 'src')\nimport shop, shop.prices\nfrom shop.cart import Cart\n"
    check += "assert shop.VERSION == '1' and shop.Cart is Cart and shop.Cart().total('tea', 'cup') == 7\n"
    check += "assert shop.prices.price('tea') == json.load(open('prices.json'))['tea'] and not os.path.exists('conftest.py')\n"
    task = Task.of("t", "", tests={"files": {"check.py": check}, "command": "python3 check.py"})
    async with await backend.create(SandboxSpec()) as agents:
        for path, text in left.items():
            await agents.write(path, text)
        rewards = RewardSet.from_recipe({"code_tests": {"files": list(left)}})
        scored = await rewards.score(task, make_episode(task), agents, fresh(backend))
    assert scored.total == 1.0, scored.notes


@pytest.mark.parametrize(("settings", "data", "code", "passed"), [
    # `sum` in a test is Python's own, unless the task says that the code's is meant.
    ({}, {}, "def sum(a, b): return a + b", 0.0),
    ({}, {"entry_point": "sum"}, "def sum(a, b): return a + b", 1.0),
    # An object of the code is asked about plain data only if the recipe says so.
    ({}, {}, "class sum_:\n    def __init__(*_): pass\n    def __eq__(*_): return True\nfive = sum_()", 0.0),
    ({"trust_operators": True}, {}, "class sum_:\n    def __eq__(*_): return True\nfive = sum_()", 1.0),
    # So is a module, whatever the code calls by its name.
    ({}, {}, "class math:\n    isclose = lambda *_: True\nfive = 6", 0.0),
    ({}, {}, "import math as m\nimport math\nfive = 5.0", 1.0),
])  # fmt: skip
async def test_whose_names_and_whose_operators(backend, settings, data, code, passed):
    test = "assert five == 5" if "five" in code else "assert sum(2, 3) == 5"
    test = "assert math.isclose(five, 5)" if "math" in code else test
    task = Task.of("t", "", tests=[test], **data)
    rewards = RewardSet.from_recipe({"code_tests": settings})
    assert (await rewards.score(task, make_episode(task, answer=code), None, fresh(backend))).total == passed


async def test_code_of_another_language_is_not_isolated_in_silence(backend):
    task = Task.of("t", "", tests={"files": {"check.sh": "test $(bash double.sh 2) = 4"}, "command": "bash check.sh"})
    async with await backend.create(SandboxSpec()) as agents:
        await agents.write("double.sh", "echo $((2 * $1))")
        for isolation in ("none", "process"):
            rewards = RewardSet.from_recipe({"code_tests": {"files": ["double.sh"], "isolation": isolation}})
            if isolation == "none":
                assert (await rewards.score(task, make_episode(task), agents, fresh(backend))).total == 1.0
            else:
                with pytest.raises(RecipeError, match="double.sh is code, but not Python"):
                    await rewards.score(task, make_episode(task), agents, fresh(backend))


@pytest.mark.parametrize("command", ["python3 -m unittest", "python3 check.py"])
async def test_a_command_that_tests_nothing_is_no_pass(backend, command):
    files = {
        "check.py": "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('x')\n    def test_it(self): pass\n"
    }
    task = Task.of("t", "", tests={"files": files, "command": command})
    rewards = RewardSet.from_recipe({"code_tests": {}})
    scored = await rewards.score(task, make_episode(task, answer=DOUBLE), None, fresh(backend))
    assert scored.total == (0.0 if "unittest" in command else 1.0), "a script proves that it reached its end, no more"


async def test_bad_tests_are_the_tasks_and_files_need_a_sandbox(backend):
    task = Task.of("t", "", tests=["assert True"])
    with pytest.raises(RecipeError, match="there is none"):
        await code_tests(task, make_episode(task), fresh(backend), files=["it.py"])
    for tests in ([{"input": "2"}], [], "x", {"files": {}}, [1], ["assert True", {"input": "", "output": ""}],
                  {"files": {"a": 1}, "command": "true"}):  # fmt: skip
        bad = Task.of("t3", "", tests=tests)
        with pytest.raises(TaskError, match="task t3: "):
            await code_tests(bad, make_episode(bad, answer="x"), fresh(backend))


@pytest.mark.parametrize("leave", [
    "true", "mkdir it.py", "echo > it.py; chmod 000 it.py", "mkfifo it.py", "ln -s it.py it.py", "ln -s /dev/zero it.py",
    "ln -s /proc/1/environ it.py", "truncate -s 70M it.py", "truncate -s 1T it.py", "python3 -m http.server 0 & ln -s /proc/$! it.py",
])  # fmt: skip
async def test_whatever_lies_where_the_file_should_be_is_a_failure_of_the_agent(backend, leave):
    task = Task.of("t", "", tests=["assert True"])
    rewards = RewardSet.from_recipe({"code_tests": {"files": ["it.py"]}})
    async with await backend.create(SandboxSpec()) as agents:
        assert (await agents.exec(leave)).ok
        scored = await rewards.score(task, make_episode(task), agents, fresh(backend))
    assert scored.total == 0.0
    assert "it.py" in scored.notes["code_tests"]


async def test_no_backend_for_a_fresh_sandbox():
    task = Task.of("t", "", tests=["assert True"])
    with pytest.raises(RewardError, match="no sandbox backend"):
        await RewardSet.from_recipe({"code_tests": {}}).score(task, make_episode(task, answer="x"))


async def test_state(backend):
    checks = [
        {"file": "a.txt", "equals": "hello"},
        {"file": "a.txt", "contains": "ell", "matches": "^h"},
        {"file": "b.txt", "absent": True},
        {"command": "cat a.txt", "stdout": "hello"},
    ]
    async with await backend.create(SandboxSpec()) as sandbox:
        await sandbox.write("a.txt", "hello\n")
        assert (await state_check(Task.of("t", "", state=checks), sandbox)).value == 1.0
        wrong = [
            *checks,
            {"file": "c.txt", "equals": "x"},
            {"command": "false", "exit": 0},
            {"file": "a.txt", "absent": True},
        ]
        found = await state_check(Task.of("t", "", state=wrong), sandbox, partial=True)
        assert found.value == pytest.approx(4 / 7)
        assert "there is no c.txt" in found.note
        assert (await state_check(Task.of("t", "", state=wrong), sandbox)).value == 0.0
        for bad in (None, [], [{"file": "a"}], ["a"]):
            with pytest.raises(TaskError, match="task t:"):
                await state_check(Task.of("t", "", state=bad), sandbox)


FORGER = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    while True:
        for name, text in (("a.txt", "hello"), ("test_it.py", "")):
            with open(name, "w") as file:
                file.write(text)
"""


async def test_what_the_agent_left_running_has_no_part_in_a_check(backend):
    """A program that writes the file again and again, from a session, where it outlives the call that started it."""
    comes_back = "rm -f a.txt; until test -e a.txt; do sleep 0.01; done"
    is_gone = "! grep -q '[f]orger.py' /proc/[0-9]*/cmdline && rm -f a.txt && test ! -e a.txt"
    running, ended = (Task.of("t", "", state=[{"command": one, "exit": 0}]) for one in (comes_back, is_gone))
    async with await backend.create(SandboxSpec()) as sandbox:
        await sandbox.write("forger.py", FORGER)
        shell = await sandbox.session()
        await shell.run("nohup setsid python3 forger.py > /dev/null 2>&1 &")
        await shell.run("until test -e a.txt; do sleep 0.01; done")
        assert (await state_check(ended, sandbox, end_programs=False)).value == 0.0
        assert (await state_check(running, sandbox, end_programs=False)).value == 1.0
        found = await state_check(ended, sandbox)
        assert found.value == 1.0, found.note
        assert (await shell.run("echo again")).text.endswith("again\n"), "sessions start again"


WRONG_REPOSITORY = {
    "solution.py": "def f(): return 'nonsense'\n",
    "test_it.py": "import unittest, solution\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(solution.f(), 4)\n",
}


@pytest.mark.parametrize(("path", "text"), [
    ("unittest.py", "raise SystemExit(0)"),
    ("json.py", "import os; os._exit(0)"),
    ("unittest/__main__.py", ""),
    (".local/lib/python3.11/site-packages/usercustomize.py", "import os; os._exit(0)"),
    (".local/lib/python3.11/site-packages/sitecustomize.py", "import os; os._exit(0)"),
    ("solution.py", "import os; os._exit(0)"),
    ("solution.py", "import sys; sys.exit(0)"),
    ("solution.py", "import atexit, os; atexit.register(lambda: os._exit(0))\ndef f(): return 5"),
    ("test_it.py", ""),
])  # fmt: skip
async def test_tests_in_the_agents_own_sandbox_must_prove_that_they_passed(backend, path, text):
    task = Task.of("t", "", state=[{"command": "python3 -m unittest test_it", "exit": 0}])
    async with await backend.create(SandboxSpec()) as sandbox:
        for name, content in {**WRONG_REPOSITORY, path: text}.items():
            await sandbox.write(name, content)
        assert (await state_check(task, sandbox)).value == 0.0
        await sandbox.write("solution.py", "def f(): return 4\n")
        await sandbox.write("test_it.py", WRONG_REPOSITORY["test_it.py"])
        assert (await state_check(task, sandbox)).value == 1.0


async def test_a_script_that_is_checked_by_what_it_prints(backend):
    checks = [{"command": "python3 main.py a", "stdout": "a 4"}, {"command": "python3 main.py a", "exit": 0}]
    task = Task.of("t", "", state=checks)
    async with await backend.create(SandboxSpec()) as sandbox:
        await sandbox.write("main.py", "import sys\nprint(sys.argv[1], 4)\nsys.exit(0)\n")
        assert (await state_check(task, sandbox)).value == 1.0
        await sandbox.write("main.py", "import os\nprint('a', 4, flush=True)\nos._exit(0)\n")
        assert (await state_check(task, sandbox, partial=True)).value == 0.5


async def reads(sandbox, task):
    return float(b"x" in await sandbox.read("it.py"))


async def reads_a_name(sandbox, episode):
    return float(b"x" in await sandbox.read(episode.answer))


async def writes(sandbox):
    await sandbox.write("out/result.txt", "1")
    return 1.0


async def says(sandbox, episode):
    return float((await sandbox.exec(["echo", episode.answer])).ok)


async def by_turn(sandbox, turn):
    return float(b"x" in await sandbox.read("it.py"))


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("function", "leave", "answer"), [
    (reads, "true", "a"),
    (reads, "mkdir it.py", "a"),
    (reads, "mkfifo it.py", "a"),
    (reads, "truncate -s 1T it.py", "a"),
    (reads, 'python3 -c "import os\nfor _ in range(10000): os.mkdir(\'d\'); os.chdir(\'d\')"', "a"),
    (by_turn, "mkdir it.py", "a"),
    (reads_a_name, "true", "no\0name"),
    (reads_a_name, "true", "no\ud800name"),
    (reads_a_name, "true", "n" * 5000),
    (says, "true", "no\0text"),
    (says, "true", "no\ud800text"),
    (writes, "touch out", "a"),
])  # fmt: skip
async def test_what_an_agent_left_is_no_bug_of_the_function_that_looks_at_it(backend, function, leave, answer, ahead):
    task, rewards = Task.of("t", ""), RewardSet.from_recipe({"looks": {"use": function}})
    pool = Pool(backend, ahead=ahead)
    async with await pool.create(SandboxSpec()) as agents:
        assert (await agents.exec(leave)).ok
        scored = await rewards.score(task, make_episode(task, turn(), answer=answer), agents)
        assert (scored.turn_totals if function is by_turn else scored.total) in (0.0, [0.0])
        assert "what the agent left" in scored.notes["looks"]
    await pool.close()


async def test_a_bug_of_the_function_is_still_one(backend):
    def opens(sandbox):
        return float(open("/no/such/file").read())

    async def waits(sandbox):
        return float((await sandbox.exec("true", timeout_s=0)).ok)

    async with await backend.create(SandboxSpec()) as agents:
        for function in (opens, waits):
            task, rewards = Task.of("t", ""), RewardSet.from_recipe({"looks": {"use": function}})
            with pytest.raises(RewardError, match="'looks' raised"):
                await rewards.score(task, make_episode(task), agents)


async def test_a_pattern_over_what_the_agent_wrote_holds_up_nobody(backend):
    checks = [{"file": "a.txt", "matches": "^(a+)+$"}]
    async with await backend.create(SandboxSpec()) as sandbox:
        await sandbox.write("a.txt", "a" * 64 + "b")
        with beside_the_loop(Helper, "_ask"):
            found = await state_check(Task.of("t", "", state=checks), sandbox)
        assert found.value == 0.0
        assert "no result" in found.note
        with pytest.raises(TaskError, match="not a regular expression"):
            await state_check(Task.of("t", "", state=[{"file": "a.txt", "matches": "("}]), sandbox)
