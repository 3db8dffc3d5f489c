"""`make gpu`: phases do not disturb each other, what they found is on disk, and what it brings along suffices."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu import expected, wheels
from scripts.gpu.__main__ import BUDGETS, unpack
from scripts.gpu.packages import listed
from scripts.gpu.phase import figures_in
from scripts.gpu.runner import ROOT, Step, play

FIGURE = "from scripts.gpu.phase import Phase; tell = Phase('cpu', True, None).figure; "
HANG = "import signal; signal.pause()"
LONG_S = 300.0


def run(out: Path, *steps: Step, **given: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns results.json, and the lines for people."""
    said: list[str] = []
    play(steps, out, os.environ, {"commit": "abc"}, said.append, **given)
    return json.loads((out / "results.json").read_text()), said


def code(name: str, text: str, seconds: float = LONG_S) -> Step:
    return Step(name, seconds, ["-c", text])


def until_told(pipe: Path, seconds: float) -> Callable[[Any, float], int]:
    """Waits for processes; the time of those that may take `seconds` is over when they have written to a pipe."""

    def wait(child: Any, limit: float) -> int:
        if limit != seconds:
            return child.wait(limit)
        assert pipe.read_text() == "x"
        raise subprocess.TimeoutExpired("python", limit)

    return wait


@pytest.mark.slow
def test_a_phase_that_fails_or_hangs_does_not_stop_the_next(tmp_path: Path) -> None:
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    found, said = run(
        out,
        code("good", FIGURE + "tell('speed', 1.23456)"),
        code("bad", FIGURE + "tell('before', 1); print('told'); raise ValueError('it broke')"),
        code("dies", "import os; os.kill(os.getpid(), 11)"),
        code("hangs", FIGURE + f"tell('before', [1, 'x']); open({str(pipe)!r}, 'w').write('x'); {HANG}", seconds=77),
        code("last", 'print(\'figure {"name": "cut sh\')'),
        wait=until_told(pipe, 77),
    )
    phases = found["phases"]
    assert found["commit"] == "abc"
    assert [(name, phase["status"]) for name, phase in phases.items()] == [
        ("good", "passed"), ("bad", "failed"), ("dies", "failed"), ("hangs", "out of time"), ("last", "passed"),
    ]  # fmt: skip
    assert phases["good"]["figures"] == {"speed": 1.235}
    assert phases["bad"]["figures"] == {"before": 1}
    assert phases["hangs"]["figures"] == {"before": [1, "x"]}
    assert phases["hangs"]["budget_s"] == 77
    assert phases["bad"]["said"][-1] == "ValueError: it broke"
    assert "    ValueError: it broke" in said
    log = (out / "log.txt").read_text()
    assert log.index("===== good") < log.index("===== bad") < log.index("ValueError: it broke") < log.index("= dies")
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "results.json"]


@pytest.mark.slow
def test_a_phase_has_its_seconds(tmp_path: Path) -> None:
    found, _ = run(tmp_path, code("hangs", HANG, seconds=0.2), code("last", ""))
    assert [phase["status"] for phase in found["phases"].values()] == ["out of time", "passed"]


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_phase_leaves_behind_is_ended(tmp_path: Path, hangs: bool) -> None:
    """It would hold memory of the GPU."""
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    other = f"print('there', flush=True); {HANG}"
    begin = f"other = subprocess.Popen([sys.executable, '-c', {other!r}], stdout=-1); other.stdout.readline()"
    end = f"open({str(pipe)!r}, 'w').write('x'); {HANG}" if hangs else ""
    text = f"import subprocess, sys; {FIGURE} {begin}; tell('pid', other.pid); {end}"
    found, _ = run(out, code("leaves", text, seconds=77 if hangs else LONG_S), wait=until_told(pipe, 77))
    assert ended(found["phases"]["leaves"]["figures"]["pid"])


def ended(pid: int) -> bool:
    """Waits until a process that was killed has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_results_outlive_a_kill(tmp_path: Path, how: signal.Signals) -> None:
    """Killed in its second phase. The phase says through a pipe that it is there, then it hangs."""
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    second = f"{FIGURE} import os; tell('pid', os.getpid()); open({str(pipe)!r}, 'w').write('x'); {HANG}"
    steps = [code("first", FIGURE + "tell('found', 2)"), code("second", second), code("third", "")]
    stop = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))"
    text = (
        "import os, pathlib, signal, sys; from scripts.gpu.runner import Step, play; "
        f"{stop}; play({steps!r}, pathlib.Path({str(out)!r}), os.environ, {{}})"
    )
    with subprocess.Popen([sys.executable, "-c", text], cwd=ROOT) as whole:
        assert pipe.read_text() == "x"
        whole.send_signal(how)
    pid = figures_in((out / "log.txt").read_text())["pid"]
    phases = json.loads((out / "results.json").read_text())["phases"]
    assert [phase["status"] for phase in phases.values()] == (
        ["passed", "running", "not run"] if how == signal.SIGKILL else ["passed", "stopped", "not run"]
    )
    assert phases["first"]["figures"] == {"found": 2}
    if how == signal.SIGKILL:
        os.kill(pid, signal.SIGKILL)
    else:
        assert phases["second"]["figures"] == {"pid": pid}
        assert whole.returncode == 143
    assert ended(pid)


def wheel(folder: Path, name: str, version: str, *needs: str, size: int = 0) -> Path:
    """A wheel with nothing in it but what it needs."""
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
        archive.writestr(f"{path.name.removesuffix('-py3-none-any.whl')}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr("padding", os.urandom(size))
    return path


@pytest.fixture
def two_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {"wheels.txt": {"first": "1.0", "second-one": "2.0"}, "machine.txt": {"torch": ""}}
    monkeypatch.setattr(wheels, "listed", lists.__getitem__)


@pytest.mark.usefixtures("two_wheels")
def test_wheels_may_not_be_too_large_nor_lack_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = wheel(
        tmp_path, "first", "1.0", "torch>=99", "Second_One>=2", "other; extra == 'x'", "old; python_version < '3.12'"
    )
    good = [first, wheel(tmp_path, "second-one", "2.0", size=5000)]
    wheels.inspect(good)
    with pytest.raises(wheels.Refused, match="second-one; run: make gpu-wheels"):
        wheels.inspect(good[:1])
    with pytest.raises(wheels.Refused, match="not the wheels of wheels.txt: first"):
        wheels.inspect([wheel(tmp_path, "first", "1.1"), good[1]])
    for need, said in (("second-one>=3", "needs second-one>=3"), ("third", "needs third: add it to wheels.txt")):
        with pytest.raises(wheels.Refused, match=said):
            wheels.inspect([wheel(tmp_path, "first", "1.0", need), good[1]])
    monkeypatch.setattr(wheels, "MOST_BYTES", sum(path.stat().st_size for path in good))
    wheels.inspect([wheel(tmp_path, "first", "1.0"), good[1]])
    monkeypatch.setattr(wheels, "MOST_BYTES", good[1].stat().st_size)
    with pytest.raises(wheels.Refused, match=r"the largest is second_one-2.0"):
        wheels.inspect(good)


def test_every_wheel_is_pinned() -> None:
    pinned = listed("wheels.txt")
    assert all(pinned.values()), pinned
    assert {"pydantic", "ruamel-yaml", "msgspec", "zstandard", "trl"} <= pinned.keys()


@pytest.mark.slow
def test_the_runner_needs_no_package() -> None:
    """It installs the wheels: they are not there when it starts."""
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "scripts.gpu", "--help"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "--only-listed" in ran.stdout


@pytest.mark.slow
def test_no_wheels_are_an_error_that_says_where_they_come_from(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "scripts.gpu", "--wheels", str(tmp_path), "--out", str(tmp_path / "out")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert f"{tmp_path} holds no wheels: run `make gpu-wheels`" in ran.stderr


@pytest.mark.slow
def test_wheels_of_another_python_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "first-1.0-cp27-cp27m-win32.whl").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"for Python 3.12 on x86-64, cannot be installed here"):
        unpack(tmp_path, tmp_path / "target")


@pytest.mark.slow
def test_packages_that_are_not_listed_can_be_hidden() -> None:
    hidden = {"modules": ["typer"], "packages": ["typer"]}
    look = (
        "import importlib.metadata as m, importlib.util as u; import click; assert u.find_spec('typer') is None\n"
        "assert 'typer' not in {d.metadata['Name'] for d in m.distributions()}; assert m.version('click')\n"
        "try: m.version('typer')\nexcept m.PackageNotFoundError: import typer"
    )
    ran = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts/gpu/only"), "AGENTRL_GPU_HIDDEN": json.dumps(hidden)},
    )  # fmt: skip
    assert "ModuleNotFoundError: No module named 'typer'" in ran.stderr


@pytest.mark.parametrize("name", BUDGETS)
def test_each_phase_is_a_program(name: str) -> None:
    assert importlib.util.find_spec(f"scripts.gpu.phases.{name}") is not None


def test_the_phases_take_eight_minutes_together() -> None:
    assert sum(BUDGETS.values()) <= 8 * 60


def test_the_page_has_what_is_expected_of_each_figure() -> None:
    page = (ROOT / "docs/gpu.md").read_text() + (ROOT / "docs/results/gpu.md").read_text()
    assert expected.table() in page, "python -m scripts.gpu.expected prints the table"
    assert all(f"`{name}`" in page for name in BUDGETS)
    assert {phase for phase, _ in expected.EXPECTED} == BUDGETS.keys()


def test_shapes_are_those_of_the_models() -> None:
    """The runner cannot import them, for they need torch."""
    torch = pytest.importorskip("torch")
    from benchmarks.random_models import SIZES, random_model

    for size in expected.SIZES:
        shape = expected.Shape(size)
        assert SIZES[size]["vocab_size"] == expected.VOCABULARY
        assert expected.weights(shape) == sum(
            p.numel() for p in random_model(size, torch.bfloat16, "meta").parameters()
        )


@pytest.mark.parametrize(("value", "fits"), [(3.0, True), (1.0, False), ("missing", False)])
def test_a_figure_that_is_not_as_expected_is_marked(value: object, fits: bool) -> None:
    said = expected.compared("decode", "0.5b, 1 rows, ms/step", value)
    assert said.startswith("expected 2 to ")
    assert ("docs/results/gpu.md" in said) != fits
    assert expected.compared("decode", "another", value) == ""
