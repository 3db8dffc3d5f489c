"""The page docs/fork.md, executed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from agentrl.store.run_dir import RunDir
from tests.command import agentrl

PAGE = Path(__file__).parents[2] / "docs" / "fork.md"


def test_the_page(tmp_path: Path) -> None:
    text = PAGE.read_text()
    code, recipe, commands = (
        re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)[0] for kind in ("python", "yaml", "bash")
    )
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "task.py").write_text(code)
    (tmp_path / "vault" / "recipe.yaml").write_text(recipe)
    shown = ""
    for line in commands.splitlines():
        shown = agentrl(*shlex.split(line)[1:], cwd=tmp_path).stdout
    assert "value before" in shown
    assert "<svg" in (tmp_path / "values.svg").read_text()
    assert agentrl("check", "runs/again", cwd=tmp_path).returncode == 0
    with RunDir.read(tmp_path / "runs" / "vault-probe") as run:
        forks = list(run.episodes())
    assert {turn.saved is not None for each in forks for turn in each.turns} == {True}
    late = max(forks, key=lambda each: each.taken)
    told = agentrl("show", "runs/vault-probe", late.id, cwd=tmp_path).stdout
    assert f"taken from {late.parent.episode if late.parent else ''}" in told
