"""Rows in the form of SWE-bench, on an image that holds the repository: played and verified in both backends."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import agentrl
from agentrl import Say
from agentrl.integrations.harbor.tool import Harbor
from agentrl.integrations.swe import verifier
from agentrl.integrations.swe.rows import oracle, row_of
from agentrl.integrations.swe.tool import Repository, check_out
from agentrl.integrations.swe.verifier import _counted, _is_change, swe_tests
from agentrl.rollouts.conversation.resumption import keeps_files_alone
from agentrl.sandbox import engine_images
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.sandbox.registry import open_backend
from agentrl.store.run_dir import RunDir
from agentrl.tools.builtin.files import Files
from agentrl.types.errors import TaskError
from agentrl.types.paths import data_path
from agentrl.types.sandbox import ExecResult, SandboxImageUnusable, SandboxSpec
from agentrl.types.task import Task
from tests.sandbox import dockerd
from tests.sandbox.conftest import docker_host  # noqa: F401

RECIPE = Path(__file__).parents[2] / "recipes" / "swe-testbed"
IMAGE = "agentrl-test/depot"
SPEC = SandboxSpec(image=IMAGE, workdir="/testbed", memory_mb=512)
PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
BREAKS = """
for each in [*globals()]:
    if callable(globals()[each]) and each != {function!r}:
        globals()[each] = None
"""
"""The end of a module of which one function is left."""


def history() -> ModuleType:
    """`sandboxes/testbed/history.py`."""
    path = data_path("sandboxes", "testbed", "history.py")
    spec = importlib.util.spec_from_file_location("history", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for name in ("train", "eval") for line in (RECIPE / f"{name}.jsonl").open()]


def a_task(number: int = 4, **changed: Any) -> Task:
    """The row of a repair, by its number."""
    row = next(each for each in rows() if each["instance_id"].endswith(f"-{number}"))
    return Task.of(row["instance_id"], row["problem_statement"], **{**row, **changed})


def breaker(task: Task, rng: Any) -> Any:
    """Repairs, and breaks a test of PASS_TO_PASS."""
    module = task.data["FAIL_TO_PASS"].partition("test_")[2].partition(".py")[0]
    function = json.loads(task.data["FAIL_TO_PASS"])[-1].rpartition("::test_")[2]
    patch = task.data["patch"].rstrip("\n")
    yield Say(calls=[("shell", {"command": f"git apply - <<'END_OF_PATCH'\n{patch}\nEND_OF_PATCH"})])
    broken = BREAKS.format(function=function)
    yield Say(calls=[("shell", {"command": f"cat >> depot/{module}.py <<'END'{broken}END"})])
    yield Say("Done.")


# --- without a sandbox ------------------------------------------------------------------------------------------------


def test_the_rows_of_the_recipe_are_those_of_the_image() -> None:
    made = {row["instance_id"]: row for row in history().rows()}
    held = {row["instance_id"]: row for row in rows()}
    assert held == made, "python sandboxes/testbed/history.py rows"
    assert all(row_of(Task.of("t", "x", **row)).fail_to_pass for row in made.values())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"FAIL_TO_PASS": "[]"}, "names no test"),
        ({"FAIL_TO_PASS": "test_a (module.Case)"}, "FAIL_TO_PASS is"),
        ({"PASS_TO_PASS": ["test_a (module.Case)"]}, "pytest's ids"),
        ({"test_patch": "nothing"}, "test_patch is no unified diff"),
        ({"patch": None}, "patch is None"),
    ],
)
def test_a_row_that_is_not_of_the_form_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskError, match=said):
        row_of(a_task(**changed))


def test_lists_are_taken_as_they_are() -> None:
    assert row_of(a_task(FAIL_TO_PASS=["t.py::a"], PASS_TO_PASS=["t.py::b"])).pass_to_pass == ("t.py::b",)


def test_no_fork_begins_with_a_snapshot_in_which_the_tool_would_check_out_again() -> None:
    assert keeps_files_alone([Files()])
    assert not keeps_files_alone([Repository(), Files()])
    assert not keeps_files_alone([Harbor(), Files()])


def test_which_changes_count() -> None:
    tests = {"tests/test_shelves.py", "tests/more/empty.txt"}
    paths = {
        "depot/shelves.py": "both", "depot/new.py": "both", ".gitattributes": "both", "depot/testing/tool.py": "none",
        "tests/helper.py": "none", "tests/data.json": "none", "tests/test_shelves.py": "", "tests": "",
        "tests/more": "", "tests/test_shelves.py/x": "", "tests/test_amounts.py": "", "tests/more/empty.txt": "",
        "conftest.py": "", "depot/conftest.py": "", "x.pth": "", "tests/__pycache__/test_amounts.cpython-311.pyc": "",
    }  # fmt: skip
    row = row_of(a_task())
    for are_apart in (False, True):
        wanted = {path for path, counts in paths.items() if counts == "both" or (counts == "none" and not are_apart)}
        found = {path: ["100644", ""] for path in paths}
        assert set(_counted(found, row, tests, are_apart)) == wanted


@pytest.mark.parametrize("path", ["./a.py", "a//b.py", "../a.py", "/a.py", ".git/config", "a/.git/config", "a/", ""])
def test_a_path_that_a_sandbox_may_not_name(path: str) -> None:
    assert _is_change(("a/b.py", ["100644", ""]))
    assert not _is_change((path, ["100644", ""]))


@pytest.mark.slow
def test_changes_are_found_and_made_without_following_links(tmp_path: Path) -> None:
    def ran(what: str, given: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(data_path("tools", "verify", "agentrl_changes.py")), what]
        asked = json.dumps(given)
        return subprocess.run(words, input=asked, cwd=tmp_path, capture_output=True, text=True, check=False)

    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 31)
    assert "too large" in ran("find", {"base": {}, "limit": 1 << 20}).stderr
    (tmp_path / "large").unlink()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("mine")
    forged = {"link": ["120000", "dGVzdHM="], "link/test_a.py": ["100644", "eA=="]}
    assert "link/test_a.py lies behind a link" in ran("make", forged).stderr
    assert "link/test_a.py lies behind a link" in ran("make", {"link/test_a.py": None}).stderr
    assert (tmp_path / "tests/test_a.py").read_text() == "mine"


# --- in sandboxes -----------------------------------------------------------------------------------------------------


def context(folder: Path) -> bytes:
    """A Dockerfile for a small image in the form of SWE-bench's: this machine's git, pytest, and the repository."""
    history().make(folder / "testbed")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=False) as tar:
        lines = "FROM agentrl/base:latest\nCOPY usr /usr\nCOPY testbed /testbed\nENV OF_IMAGE=1\n"
        _add(tar, "Dockerfile", lines.encode())
        for path in sorted(dockerd._files(["git"])):
            _add(tar, f"usr/{path.removeprefix('/usr').lstrip('/')}", Path(path).read_bytes(), 0o755)
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            origin = Path(spec.origin)
            origin = origin.parent if origin.name == "__init__.py" else origin
            tar.add(origin, f"usr/lib/python3/dist-packages/{origin.name}", filter=_no_caches)
        _add(tar, "usr/lib/python3/dist-packages/depot.pth", b"/testbed\n")
        tar.add(folder / "testbed", "testbed")
    return packed.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _no_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


@pytest.fixture(scope="module")
def image(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: F811
    """The image in the engine, and unpacked where the user of the sandboxes can read it."""
    import docker

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        patch.setenv("DOCKER_HOST", docker_host)
        Path(cache).chmod(0o755)
        patch.setenv("AGENTRL_CACHE", cache)
        api = docker.from_env().api
        packed = io.BytesIO(context(tmp_path_factory.mktemp("depot")))
        said = list(api.build(fileobj=packed, custom_context=True, tag=IMAGE, rm=True, decode=True))
        assert api.images(IMAGE), said[-3:]
        engine_images.unpack(IMAGE)
        yield IMAGE
        api.remove_image(f"{IMAGE}:latest", force=True)


def either(task: Task, rng: Any) -> Any:
    """Repairs the first four rows, breaks a test of the next two, and does nothing in the others."""
    number = [row["instance_id"] for row in rows()].index(task.id)
    if number < 6:
        yield from (oracle if number < 4 else breaker)(task, rng)
    else:
        yield Say()


@pytest.mark.family("swe")
@pytest.mark.slow
@pytest.mark.parametrize(("backend", "isolation"), [("namespace", "process"), ("docker", "none")])
def test_the_recipe_is_played_eight_at_once(tmp_path: Path, image: str, backend: str, isolation: str) -> None:
    settings = {"sandbox.use": backend, "sandbox.spec.image": image, "concurrency": 8}
    settings |= {"rewards.swe_tests.isolation": isolation}
    settings |= {"scripts.either": f"{__name__}:either", "limits.sandbox_s": 300, "limits.score_s": 600}
    agentrl.rollout(str(RECIPE), 8, script="either", overrides=settings, out=tmp_path / "run", reporters=())
    with RunDir.read(tmp_path / "run") as run:
        found = {episode.task.id: (episode.reward, str(episode.error)) for episode in run.episodes()}
    ids = [row["instance_id"] for row in rows()[:8]]
    assert [found[id] for id in ids] == [(1.0, "None")] * 4 + [(0.0, "None")] * 4


async def scored(box: Any, backend: Any, task: Task, **settings: Any) -> tuple[float, str]:
    found: Any = await swe_tests(task, lambda: backend.create(SPEC), box, **settings)
    return found.value, found.note


@pytest.mark.family("swe")
@pytest.mark.slow
async def test_what_counts_and_what_does_not(image: str) -> None:
    backend = open_backend("namespace")
    try:
        task = a_task()
        conftest = "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        conftest += "    out = yield\n    out.get_result().outcome = 'passed'\n"
        repair = f"git apply - <<'END'\n{task.data['patch'].rstrip()}\nEND"
        acts = {
            "a patch": (repair, 1.0),
            "a commit, and no history": (f"{repair}\ngit commit -qam x; rm -rf .git", 1.0),
            "the tests themselves": ("printf 'def test_merge(): pass\\n' > tests/test_shelves.py", 0.0),
            "a conftest.py": (f"cat > conftest.py <<'END'\n{conftest}END\ncp conftest.py tests/", 0.0),
            "nothing": ("touch depot/shelves.py", 0.0),
            "all is gone": ("rm -rf depot", 0.0),
        }
        for name, (act, reward) in acts.items():
            box = await backend.create(SPEC)
            await Repository().open(task, box)
            assert (await box.exec(act)).ok, name
            for isolation in ("none", "process"):
                value, note = await scored(box, backend, task, isolation=isolation)
                assert value == reward, (name, isolation, note)
            await box.close()
    finally:
        await backend.close()


@pytest.mark.family("swe")
@pytest.mark.slow
async def test_the_repair_is_not_in_the_history(image: str) -> None:
    backend = NamespaceBackend()
    try:
        box = await backend.create(SPEC)
        await Repository().open(a_task(), box)
        seen = await box.exec("git log --all --oneline | wc -l; git fsck --lost-found | wc -l; git status --short")
        assert seen.text.split() == ["1", "0"]
        other = await backend.create(SPEC)
        with pytest.raises(TaskError, match="has no commit 'f00'"):
            await check_out(a_task(base_commit="f00"), other)
        with pytest.raises(SandboxImageUnusable, match="no git repository in /work"):
            await check_out(a_task(), await backend.create(SandboxSpec(image=IMAGE)))
        await box.exec("echo '# more' >> depot/shelves.py")
        gone = "--- a/tests/gone.py\n+++ b/tests/gone.py\n@@ -1 +1 @@\n-x\n+y\n"
        with pytest.raises(TaskError, match="test_patch does not apply"):
            await scored(box, backend, a_task(test_patch=gone))
    finally:
        await backend.close()


@pytest.mark.family("swe")
@pytest.mark.slow
async def test_a_test_that_is_skipped_has_not_passed(image: str) -> None:
    backend = NamespaceBackend()
    try:
        box = await backend.create(SPEC)
        await Repository().open(a_task(), box)
        await box.exec(
            "cat >> depot/shelves.py <<'END'\nimport pytest\npytest.skip('no', allow_module_level=True)\nEND"
        )
        assert (await scored(box, backend, a_task()))[0] == 0.0
    finally:
        await backend.close()


LATER = """
import os, subprocess
found = subprocess.run("git rev-list --all --objects; ls -R .git", shell=True, cwd={folder!r}, capture_output=True)
later = subprocess.run(["git", "show", "main:depot/shelves.py"], cwd={folder!r}, capture_output=True, text=True)
exec(later.stdout)
"""
"""A module that takes its repair from a later commit of the repository in which it is tested."""
COLORS = """\
diff --git a/tests/test_colors.py b/tests/test_colors.py
new file mode 100644
--- /dev/null
+++ b/tests/test_colors.py
@@ -0,0 +1,5 @@
+import colorsys
+from depot.shelves import merge
+
+def test_colors():
+    assert colorsys.rgb_to_yiq(len(merge([(0, 2), (2, 4)])), 0, 0) == colorsys.rgb_to_yiq(1, 0, 0)
"""


@pytest.mark.family("swe")
@pytest.mark.slow
async def test_what_an_agent_may_try(image: str) -> None:
    backend = open_backend("namespace")
    try:
        task = a_task()
        colors = a_task(test_patch=COLORS, FAIL_TO_PASS=["tests/test_colors.py::test_colors"], PASS_TO_PASS=[])
        repair = f"git apply - <<'END'\n{task.data['patch'].rstrip()}\nEND"
        later = LATER.format(folder=SPEC.workdir)
        both = ("none", "process")
        acts = {
            "a later commit": (task, f"cat > depot/shelves.py <<'END'\n{later}END", both, 0.0),
            "tests become a link": (task, f"{repair}\nmv tests /tmp/; ln -s /tmp/tests tests", ("none",), 1.0),
            "an encoding of files": (task, "echo '*.py working-tree-encoding=UTF-16' > .gitattributes", ("none",), 0.0),
            "another test": (
                task,
                f"{repair}\necho 'def clock(minutes): pass' >> depot/days.py; rm -f tests/test_days.py;"
                "printf 'def test_base_0(): pass\\ndef test_base_1(): pass\\n' > tests/test_days.py",
                both, 0.0,
            ),
            "a library": (colors, "echo 'def rgb_to_yiq(*a): return 1' > colorsys.py", ("process",), 0.0),
            "a library, beside a repair": (colors, f"{repair}\necho x = 1 > colorsys.py", ("process",), 1.0),
            "a name that is no text": (task, f"{repair}\ntouch $(printf 'a\\377b')", ("process",), 1.0),
        }  # fmt: skip
        wrong = []
        for name, (row, act, isolations, reward) in acts.items():
            box = await backend.create(SPEC)
            await Repository().open(row, box)
            assert (done := await box.exec(act)).ok, (name, done.text)
            for isolation in isolations:
                value, note = await scored(box, backend, row, isolation=isolation)
                if value != reward:
                    wrong.append((name, isolation, value, note))
            await box.close()
        assert not wrong
        box = await backend.create(SPEC)
        await Repository().open(task, box)
        await box.exec(repair)
        with pytest.raises(SandboxImageUnusable, match="has no pytest"):
            await scored(box, backend, task, python="/bin/true2")
    finally:
        await backend.close()


def test_what_a_sandbox_says_of_its_changes_is_bounded() -> None:
    """Its Python may be the agent's."""
    assert _is_change(("a/b.py", None))
    assert not _is_change(("a/" * 100_000 + "b.py", None))


@pytest.mark.parametrize("said", [b'{"a": [' + b"{}," * 600_000 + b"{}]}", b"[" * 100_000, b"7", b"\xff"])
async def test_changes_that_are_no_changes_are_a_note(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Budget:
        async def exec(self, *given: object, **more: object) -> ExecResult:
            return ExecResult(0, "ok", stdout=said)

    monkeypatch.setattr(verifier, "budget", Budget)
    monkeypatch.setattr(verifier, "json", _NoLoads())
    assert isinstance(await verifier._run_changes(None, "find", {}), str)  # type: ignore[arg-type]


class _NoLoads:
    """`json` without `loads`, which makes gigabytes of what is bounded in bytes alone."""

    dumps = staticmethod(json.dumps)
