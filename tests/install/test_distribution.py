"""The distribution: its one name, its one version, and what lies beside the code for its users."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from ruamel.yaml import YAML

import agentrl
from agentrl.commands import doctor
from agentrl.types.distribution import DISTRIBUTION, pip_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OTHERS = re.compile(r"""agentrl\\?\[[a-z{]|pip install (?:-\S+ )*['"]?agentrl(?![\w.-])""")
"""Another project's package: `agentrl[train]`, `pip install agentrl`."""


def texts() -> Iterator[tuple[str, str]]:
    """The text files of the repository, but for this one."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path != Path(__file__) and path.suffix not in (".png", ".lock", ".jsonl", ".zst"):
            yield name, path.read_text(errors="ignore")


def test_the_version_is_written_once() -> None:
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == agentrl.__version__ == str(Version(agentrl.__version__))
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert (ROOT / PROJECT["tool"]["hatch"]["version"]["path"]).read_text().count(f'"{newest}"') == 1


def test_the_name_is_read_in_one_place() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION
    assert pip_install("train", "lora") == "pip install 'agentrl-framework[train,lora]'"
    code = {path: path.read_text() for path in (ROOT / "agentrl").rglob("*.py")}
    assert [str(path.relative_to(ROOT)) for path, text in code.items() if re.search(r'"agentrl-framework', text)] == [
        "agentrl/types/distribution.py"
    ]


@pytest.mark.slow
def test_nobody_is_sent_to_the_package_of_another_project() -> None:
    assert {name: found[0] for name, text in texts() if (found := OTHERS.search(text))} == {}


def test_extras_that_hold_other_extras_name_this_package() -> None:
    for extra, lines in PROJECT["project"]["optional-dependencies"].items():
        own = [each for each in map(Requirement, lines) if each.name.startswith("agentrl")]
        assert {each.name for each in own} <= {DISTRIBUTION}, extra


def test_the_citation_is_of_this_version() -> None:
    cited = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (agentrl.__version__, PROJECT["project"]["license"])
    assert cited["repository-code"] == PROJECT["project"]["urls"]["Homepage"]


def test_types_are_announced_and_the_page_of_security_is_there() -> None:
    assert (ROOT / "agentrl/py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
    assert "docs/threat-model.md" in (ROOT / "SECURITY.md").read_text()


def test_the_doctor_finds_the_package_of_another_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "AgentRL-0.0.18.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: AgentRL\nVersion: 0.0.18\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = doctor._distribution()
    assert not found.ok
    assert "AgentRL 0.0.18 is installed too" in found.found
    assert found.fix == "pip uninstall -y agentrl && pip install --force-reinstall --no-deps agentrl-framework"
    assert doctor._distribution in doctor.CHECKS
