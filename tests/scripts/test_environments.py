"""Every environment is pinned, its pins fit what is asked for, and uv asks the indexes of pip."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import tomllib

import pytest

from agentrl.types.distribution import DISTRIBUTION
from scripts import environments
from scripts.environments import ENVIRONMENTS, REQUIREMENTS, ROOT


def pins(name: str) -> dict[str, set[str]]:
    """Versions by package: for some Pythons another one may be pinned."""
    found: dict[str, set[str]] = {}
    for file in environments.pinned(name):
        for line in file.read_text().splitlines():
            if line and not line.startswith("#"):
                package, version = re.fullmatch(r"([\w.-]+)(?:\[.*\])?==(\S+)(?: ; .*)?", line).groups()  # type: ignore[union-attr]
                found.setdefault(package.lower().replace("_", "-"), set()).add(version)
    return found


def names(lines: list[str]) -> set[str]:
    matches = [re.match(r"[\w.-]+", line) for line in lines if not line.startswith("#")]
    return {match[0].lower().replace("_", "-") for match in matches if match}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_all_that_is_asked_for_is_pinned(name: str) -> None:
    asked = names((REQUIREMENTS / f"{name}.in").read_text().splitlines())
    assert asked <= {*pins(name)}
    resolved = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    assert not any(environments.TORCH.match(line) for line in resolved)


def test_the_main_environment_has_every_extra_and_the_versions_that_we_know() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = names([line for extra in extras if extra != "vllm" for line in extras[extra]])
    pinned = pins("main")
    assert asked - {"torch", DISTRIBUTION} <= {*pinned}
    known = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    for package, version in known:
        if (package := package.lower().replace("_", "-")) in pinned:
            assert pinned[package] == {version}


def test_uv_asks_what_pip_is_set_up_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "global.index-url='https://one/simple'\n:env:.find-links='/wheels /more'\n"
        "global.extra-index-url='file:///folder https://two/simple'\nglobal.timeout='60'\n"
    )
    done = subprocess.CompletedProcess([], 0, stdout=listed)
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: done)
    environments.indexes.cache_clear()
    try:
        assert environments.indexes() == (
            "--index-url=https://one/simple",
            "--extra-index-url=https://two/simple",
            "--find-links=/wheels",
            "--find-links=/more",
        )
    finally:
        environments.indexes.cache_clear()


def test_a_step_that_is_silent_says_that_it_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    twice = threading.Event()

    def say(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            twice.set()

    monkeypatch.setattr(environments, "say", say)
    monkeypatch.setattr(environments, "EVERY_S", 0.01)
    with environments.ticking("installing 7 packages"):
        twice.wait()
    count = len(told)
    assert count >= 2
    assert all(re.fullmatch(r"  installing 7 packages: \d+ s so far", line) for line in told)
    assert not any(thread.name.endswith("(tick)") for thread in threading.enumerate())


@pytest.mark.slow
def test_what_uv_says_is_printed_without_a_line_for_each_package(capfd: pytest.CaptureFixture[str]) -> None:
    words = "import sys; print('Downloading torch (180MiB)'); print(' + numpy==2.0'); sys.exit('  x No solution found')"
    with pytest.raises(SystemExit) as ended:
        environments.run(sys.executable, "-c", words, told="installing")
    assert ended.value.code == 1
    lines = capfd.readouterr().out.splitlines()
    assert sorted(line.strip() for line in lines) == ["Downloading torch (180MiB)", "x No solution found"]
