"""The tool and the reward for SWE-bench rows, on a sandbox with scripted answers and faults."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.integrations.swe.rows import oracle
from agentrl.integrations.swe.tool import Repository
from agentrl.integrations.swe.verifier import _is_change, swe_tests
from agentrl.rewards.declare import about
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import ExecResult, Sandbox, SandboxImageUnusable
from agentrl.types.task import Task
from tests.integrations.scripted import Answer, ScriptedSandbox, failed, said

PATCH = "--- a/depot/sums.py\n+++ b/depot/sums.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TESTS = "--- a/tests/test_sums.py\n+++ b/tests/test_sums.py\n@@ -1 +1 @@\n-y = 1\n+y = 2\n"
LISTED = "".join(
    f"{mode} {kind} {'0' * 40}\t{path}\0"
    for mode, kind, path in [
        ("100644", "blob", "depot/sums.py"),
        ("100644", "blob", "depot/gone.py"),
        ("100644", "blob", "depot/kept.py"),
        ("120000", "blob", "depot/link.py"),
        ("160000", "commit", "module"),
        ("100644", "blob", "tests/test_sums.py"),
    ]
)


def a_task(**changed: Any) -> Task:
    row = {
        "base_commit": "c0ffee", "patch": PATCH, "test_patch": TESTS, "PASS_TO_PASS": ["tests/test_sums.py::b"],
        "FAIL_TO_PASS": ["tests/test_sums.py::a", "tests/test_sums.py::b"],
    }  # fmt: skip
    return Task.of("row", "Mend it.", **{**row, **changed})


def content(text: str) -> list[str]:
    return ["100644", base64.b64encode(text.encode()).decode()]


def proof(given: bytes) -> ExecResult:
    """A run of pytest that proves that all tests passed."""
    return said(f"2 passed\n{json.loads(given)['word']}")


def boxes(found: dict[str, Any], **answers: Answer) -> tuple[ScriptedSandbox, ScriptedSandbox, ScriptedSandbox]:
    """The agent's sandbox, which answers `found` as its changes; the judge's; and that of the code."""
    own: dict[str, Answer] = {"python3 -I -c": said("{}"), "agentrl_proof": proof, "ls-tree": said(LISTED)}
    judge = ScriptedSandbox(own | answers)
    code = ScriptedSandbox({"ls-tree": said(LISTED)}, files={"depot/kept.py": b"k = 1", "depot/sums.py": b"x = 1"})
    return ScriptedSandbox({"python3 -I -c": said(json.dumps(found))}), judge, code


async def scored(
    agents: ScriptedSandbox, others: Sequence[ScriptedSandbox], task: Task | None = None, **settings: Any
) -> tuple[float, str]:
    left = list(others)

    async def opened() -> Sandbox:
        return left.pop(0)  # type: ignore[return-value]

    found: Any = await swe_tests(task or a_task(), opened, agents, **settings)  # type: ignore[arg-type]
    return found.value, found.note


# --- the tool ---------------------------------------------------------------------------------------------------------


async def test_the_tool_checks_the_commit_out_before_it_hides_the_history() -> None:
    box = ScriptedSandbox()
    await Repository().open(a_task(), box)  # type: ignore[arg-type]
    checked_out, forgotten = box.ran
    assert "git -c advice" in checked_out
    assert checked_out.endswith(" sh c0ffee")
    assert "git init" in forgotten
    assert forgotten.endswith(" sh c0ffee")


async def test_a_row_without_a_commit_begins_with_what_the_image_has_checked_out() -> None:
    box = ScriptedSandbox()
    await Repository().open(a_task(base_commit=""), box)  # type: ignore[arg-type]
    assert [words.rpartition(" ")[2] for words in box.ran] == ["", "base"]


@pytest.mark.parametrize(
    ("answers", "kind", "message", "remedy"),
    [
        ({"rev-parse": failed(3)}, TaskError, "/app has no commit 'c0ffee'", "mend base_commit"),
        ({"rev-parse": failed(4)}, SandboxImageUnusable, "there is no git repository in /app", "image with git"),
        ({"rev-parse": failed(128, "dubious")}, SandboxImageUnusable, "git fails: dubious in /app", "image with git"),
        ({"git init": failed(1, "disk full")}, SandboxImageUnusable, "git fails in /app: disk full", ""),
    ],
)
async def test_an_image_without_the_commit_is_refused_by_name(
    answers: dict[str, Answer], kind: type[TaskError], message: str, remedy: str
) -> None:
    with pytest.raises(kind) as refused:
        await Repository().open(a_task(), ScriptedSandbox(answers))  # type: ignore[arg-type]
    assert message in refused.value.message
    assert "task 'row'" in (refused.value.place or "")
    assert remedy in (refused.value.remedy or "")


def test_the_tool_refuses_a_row_that_is_not_of_the_form_before_the_first_episode() -> None:
    Repository().check_task(a_task())
    with pytest.raises(TaskError, match="names no test"):
        Repository().check_task(a_task(FAIL_TO_PASS=[]))


def test_the_oracle_applies_the_patch_of_the_row() -> None:
    first, last = oracle(a_task(), random.Random(0))
    calls = [*(first.calls or ())]
    assert [name for name, _ in calls] == ["shell"]
    assert calls[0][1]["command"] == f"git apply - <<'END_OF_PATCH'\n{PATCH.rstrip()}\nEND_OF_PATCH"
    assert last.text == "Done."


# --- the reward -------------------------------------------------------------------------------------------------------


async def test_a_repair_whose_tests_prove_that_they_passed_counts_1() -> None:
    agents, judge, _ = boxes({"depot/sums.py": content("x = 2"), "tests/test_sums.py": content("pass")})
    made: list[bytes] = []
    jobs: list[dict[str, Any]] = []

    def make(given: bytes) -> ExecResult:
        made.append(given)
        return said("{}")

    def run(given: bytes) -> ExecResult:
        jobs.append(json.loads(given))
        return proof(given)

    judge.answers |= {"python3 -I -c": make, "agentrl_proof": run}
    assert await scored(agents, [judge]) == (1.0, "")
    assert [json.loads(given) for given in made] == [{"depot/sums.py": content("x = 2")}], "tests are those of the row"
    (job,) = jobs
    assert job["args"][-2:] == ["tests/test_sums.py::a", "tests/test_sums.py::b"]
    assert (job["least"], job["foreign"]) == (2, ["/app/depot/sums.py"])
    order = ["git -c advice", "ls-tree", "git init", "ls-tree", "import pytest", "numstat", "-c", "agentrl_proof"]
    assert [part for part, words in zip(order, judge.ran, strict=True) if part not in words] == []


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (said("1 passed\n1 failed"), "ok: 1 failed"),
        (failed(2, "ImportError: sums"), "nonzero: ImportError: sums"),
        (ExecResult(None, "timeout"), "timeout"),
    ],
)
async def test_tests_without_a_proof_count_0_with_their_last_line(answer: ExecResult, note: str) -> None:
    agents, judge, _ = boxes({"depot/sums.py": content("x = 3")}, agentrl_proof=answer)
    assert await scored(agents, [judge]) == (0.0, note)


async def test_changes_of_the_tests_alone_count_nothing() -> None:
    agents, judge, _ = boxes({"tests/test_sums.py": content("pass"), "conftest.py": content("")})
    assert await scored(agents, [judge]) == (0.0, "the agent changed nothing that counts")


async def test_an_agent_cannot_void_its_episode_by_what_its_sandbox_does() -> None:
    _, judge, _ = boxes({})
    hanging = ScriptedSandbox(processes=3)
    assert await scored(hanging, [judge]) == (0.0, "the agent's programs could not be ended")
    lying = ScriptedSandbox({"python3 -I -c": failed(1, "no python3")})
    assert await scored(lying, [judge]) == (0.0, "the changes of the agent cannot be taken: no python3")
    agents, _, _ = boxes({"depot/sums.py": content("x = 2")})
    judge.answers |= {"python3 -I -c": failed(1, "behind a link")}
    assert await scored(agents, [judge]) == (0.0, "the changes of the agent cannot be made: behind a link")


async def test_an_image_without_pytest_is_no_fault_of_the_agent() -> None:
    agents, judge, _ = boxes({"depot/sums.py": content("x = 2")}, **{"import pytest": failed(1, "ModuleNotFound")})
    with pytest.raises(SandboxImageUnusable, match="python4 of the image 'agentrl-test/none' has no pytest") as refused:
        await scored(agents, [judge], python="python4")
    assert "rewards.swe_tests.python" in (refused.value.remedy or "")
    assert any(words.startswith("python4 -c") for words in judge.ran)


async def test_a_test_patch_that_does_not_apply_is_a_fault_of_the_row() -> None:
    agents, judge, _ = boxes({}, numstat=failed(1, "patch does not apply"))
    with pytest.raises(TaskError, match="test_patch does not apply: patch does not apply") as refused:
        await scored(agents, [judge])
    assert "leave the row out" in (refused.value.remedy or "")


async def test_files_that_git_names_as_touched_by_the_test_patch_are_not_the_agents() -> None:
    given = {"depot/extra.txt": content("forged")}
    agents, judge, _ = boxes(given, numstat=said("1\t1\ttests/test_sums.py\0-\t-\tdepot/extra.txt\0"))
    assert await scored(agents, [judge]) == (0.0, "the agent changed nothing that counts")


async def test_a_row_without_a_test_patch_takes_the_tests_of_the_commit() -> None:
    agents, judge, _ = boxes({"depot/sums.py": content("x = 2")})
    assert await scored(agents, [judge], a_task(test_patch="")) == (1.0, "")
    assert not any("git apply" in words for words in judge.ran)


async def test_code_apart_is_where_no_test_is_and_tests_see_stubs_of_it() -> None:
    given = {
        "depot/sums.py": content("x = 2"), "depot/gone.py": None, "depot/new.py": content("z = 3"),
        "depot/table.csv": content("1,2"), "tests/helper.py": content("pass"),
    }  # fmt: skip
    agents, judge, code = boxes(given)
    assert await scored(agents, [judge, code], isolation="process") == (1.0, "")
    assert code.files["depot/sums.py"] == b"x = 2", "the agent's"
    assert code.files["depot/kept.py"] == b"k = 1", "of the commit"
    assert b"the agent removed this file" in code.files["depot/gone.py"]
    assert code.files["depot/new.py"] == b"z = 3"
    for path in ("depot/sums.py", "depot/kept.py", "depot/gone.py"):
        assert b"agentrl_stub.become" in judge.files[path], path
    assert not {"depot/new.py", "depot/table.csv"} & judge.files.keys(), "the row has no such file"
    assert "depot/link.py" not in code.files
    assert not {"tests/helper.py", "tests/test_sums.py"} & (code.files.keys() | judge.files.keys())


async def test_new_files_are_seen_by_the_tests_where_the_repair_is_unknown() -> None:
    agents, judge, code = boxes({"depot/new.py": content("z = 3"), "depot/table.csv": content("1,2")})
    code.files["depot/gone.py"] = b""
    assert await scored(agents, [judge, code], a_task(patch=""), isolation="process") == (1.0, "")
    assert b"agentrl_stub.become" in judge.files["depot/new.py"]
    assert judge.files["depot/table.csv"] == code.files["depot/table.csv"] == b"1,2"


def test_only_a_reward_of_one_process_can_be_forged() -> None:
    forgeable: Any = about(swe_tests).forgeable
    assert "process" in forgeable({})
    assert forgeable({"isolation": "process"}) == ""


@pytest.mark.parametrize("entry", [["100644", "no base64!"], ["100644"], ["100644", 7], 7, ["100600", ""]])
def test_an_entry_that_is_no_file_is_no_change(entry: Any) -> None:
    assert not _is_change(("a.py", entry))
