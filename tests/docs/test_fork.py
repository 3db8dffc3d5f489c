"""The page docs/fork.md, executed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from agentrl import rollout
from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "fork.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def write_vault(here: Path) -> Path:
    (here / "vault").mkdir()
    (here / "vault" / "task.py").write_text("\n".join(blocks("python")))
    (here / "vault" / "recipe.yaml").write_text(blocks("yaml")[0])
    return here / "vault"


def test_the_agents_that_fork(tmp_path: Path) -> None:
    vault = write_vault(tmp_path)
    named = yaml.safe_load(blocks("yaml")[1])["agent"]
    for out, agent in (("twice", {"use": "./task.py:Twice"}), ("tree", named)):
        overrides = {f"agent.{key}": value for key, value in agent.items()}
        run = rollout(vault, 8, group_size=2, script="clumsy", overrides=overrides, out=tmp_path / out, reporters=())
        forks = [each for each in run.whole_episodes() if each.forked]
        run.close()
        assert forks
        assert_sound(tmp_path / out)
        assert out == "tree" or {each.taken for each in forks} == {2}


def test_the_page(tmp_path: Path) -> None:
    (commands,) = blocks("bash")
    write_vault(tmp_path)
    shown = [agentrl(*shlex.split(line)[1:], cwd=tmp_path).stdout for line in commands.splitlines()]
    assert "value before" in shown[-2]
    assert "truest here: " in shown[-1]
    assert "<svg" in (tmp_path / "values.svg").read_text()
    assert_sound(tmp_path / "runs/again")
    with RunDir.read(tmp_path / "runs" / "vault-probe") as run:
        forks = list(run.episodes())
    assert {turn.saved is not None for each in forks for turn in each.turns} == {True}
    late = max(forks, key=lambda each: each.taken)
    told = agentrl("show", "runs/vault-probe", late.id, cwd=tmp_path).stdout
    assert f"taken from {late.parent.episode if late.parent else ''}" in told
