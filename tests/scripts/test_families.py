"""A family runs when its own files changed, and only green tests of committed files are recorded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import families
from scripts.families import Family, FamilyError

TABLE = """
[slugs]
needs = ["setup"]
files = ["slugs/**", "requirements/slugs.in"]
smoke = ["tests/test_slugs.py::test_one"]

[snails]
needs = []
files = ["snails/*.py"]
"""


class Checkout:
    """A repository with two families, whose tests are `code` and are only noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.code, self.ran = folder, 0, []
        monkeypatch.setattr(families, "ROOT", folder)
        monkeypatch.setattr(families, "TABLE", folder / "families.toml")
        monkeypatch.setattr(families, "LOCK", folder / "families.lock")
        monkeypatch.setattr(Family, "run", self._run)
        monkeypatch.delenv("CI", raising=False)
        self.write("families.toml", TABLE)
        self.write("slugs/slug.py", "1")
        self.write("requirements/slugs.in", "slug\n")
        self.write("snails/snail.py", "1")
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
        self.commit()

    ran: list[tuple[str, ...]]

    def _run(self, *tests: str) -> int:
        self.ran.append(tests)
        return self.code

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def commit(self) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "add", "."], cwd=self.folder, check=True)
        subprocess.run(["git", *who, "commit", "-qm", "x"], cwd=self.folder, check=True)

    def record(self) -> None:
        for name in ("slugs", "snails"):
            assert self.call("run", name) == 0
        self.ran.clear()

    def call(self, *arguments: str) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["families", *arguments])
            return families.main()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    return Checkout(tmp_path, monkeypatch)


def test_what_is_green_is_recorded_and_changes_with_its_own_files_only(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checkout.call("status") == 1
    checkout.record()
    assert checkout.call("status") == 0
    checkout.write("other/file.py", "2")
    assert checkout.call("status") == 0
    checkout.write("slugs/new.py", "2")
    capsys.readouterr()
    assert checkout.call("status") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "changed: make test-slugs" in lines[0]
    assert "unchanged" in lines[1]


@pytest.mark.parametrize("why", ["red", "ci", "uncommitted"])
def test_nothing_is_recorded_if(why: str, checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "red":
        checkout.code = 1
    if why == "ci":
        monkeypatch.setenv("CI", "true")
    if why == "uncommitted":
        checkout.write("slugs/slug.py", "2")
    assert checkout.call("run", "slugs") == checkout.code
    assert not families.LOCK.exists()


def test_ci_runs_what_changed_whole_and_a_test_of_the_others(checkout: Checkout) -> None:
    checkout.record()
    before = families.LOCK.read_text()
    assert checkout.call("ci") == 0
    assert checkout.ran == [("tests/test_slugs.py::test_one",)]
    checkout.write("snails/snail.py", "2")
    checkout.ran.clear()
    assert checkout.call("ci") == 0
    assert checkout.ran == [("tests/test_slugs.py::test_one",), ()]
    checkout.code = 1
    assert checkout.call("ci") == 1
    assert families.LOCK.read_text() == before


def test_those_that_changed_are_run_and_recorded(checkout: Checkout) -> None:
    checkout.record()
    assert checkout.call("run", "--changed") == 0
    assert checkout.ran == []
    checkout.write("snails/snail.py", "2")
    checkout.commit()
    assert checkout.call("run", "--changed") == 0
    assert checkout.ran == [()]
    assert checkout.call("status") == 0


def test_ci_names_the_command_for_what_it_cannot_run(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkout.call("ci", "--minutes", "29") == 2  # neither was ever recorded
    assert "make test-slugs && make test-snails" in capsys.readouterr().err
    assert not checkout.ran
    checkout.record()
    checkout.write("slugs/slug.py", "2")
    assert checkout.call("ci", "--minutes", "-1") == 2
    error = capsys.readouterr().err
    assert "slugs" in error
    assert "make test-slugs" in error
    assert "snails" not in error
    assert not checkout.ran


def test_a_family_that_was_never_recorded_runs_whole(checkout: Checkout) -> None:
    assert checkout.call("ci") == 0
    assert checkout.ran == [(), ()]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"seconds": ', '"seconds": 1', "slugs: the entry was edited by hand: make test-slugs"),
        ('"slugs": ', '"worms": ', "worms: .* has no such family"),
        ('"commit"', '"commits"', "slugs: .*make test-slugs"),
        ("{", "", "cannot be read .* restore it from git"),
    ],
)
def test_a_record_that_was_edited_is_an_error_that_names_the_family(
    old: str, new: str, error: str, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.record()
    families.LOCK.write_text(families.LOCK.read_text().replace(old, new, 1))
    for command in ("status", "ci"):
        assert checkout.call(command) == 2
        with pytest.raises(FamilyError, match=error):
            families.recorded(families.families())
    assert "error: " in capsys.readouterr().err
    assert checkout.call("run", "slugs") == 0  # begins the record again
    assert checkout.call("status") == 1


def test_patterns_and_keys_of_the_table_are_checked(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.write("families.toml", TABLE.replace("snails/*.py", "shells/*.py"))
    assert checkout.call("status") == 2
    assert "snails: files: no file matches 'shells/*.py'" in capsys.readouterr().err
    checkout.write("families.toml", TABLE.replace("smoke", "smokes"))
    assert checkout.call("status") == 2
    assert "slugs: " in capsys.readouterr().err
    assert checkout.call("run", "worms") == 2


def test_the_families_of_this_repository_can_be_read() -> None:
    known = families.families()
    makefile = (families.ROOT / "Makefile").read_text()
    for family in known.values():
        assert family.digest()
        assert re.fullmatch("[a-z]+", family.name), "the Makefile's FAMILIES would not find it"
        for need in family.needs:
            assert f"\n{need}:" in makefile
        for test in () if family.command else family.smoke:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (families.ROOT / file).read_text()


@pytest.mark.slow
def test_a_family_may_be_a_program(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(families, "ROOT", checkout.folder)
    checkout.write("Makefile", "setup:\n")
    checkout.write("check.py", "import sys; sys.exit(len(sys.argv) + 2)")
    family = Family("worms", ("setup",), ("check.py",), command=("check.py",), python=sys.executable)
    assert family.run() == 3
    assert family.run("--only", "files") == 5
