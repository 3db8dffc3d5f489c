"""The page docs/python.md, executed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import agentrl

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    namespace: dict[str, object] = {}
    exec(code, namespace)
    assert len(namespace["rolled"].episodes) == 8  # type: ignore[attr-defined]
    assert namespace["measured"].metrics[-1]["episodes"] == 16  # type: ignore[attr-defined]
    assert {"demo", "train", "eval"} == set(namespace["turns"]["split"])  # type: ignore[index]
    assert "advantage" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["rollout", "train", "evaluate", "rescore", "recredit", "fork", "probe", "http_client"]
)
def test_the_arguments_are_those_of_the_page(name: str) -> None:
    (told,) = re.findall(rf"^\| `{name}\((.*?)\)`", PAGE, re.MULTILINE)
    names = [part.split("=")[0].strip() for part in told.split(",")]
    assert [part for part in names if part != "*"] == [*inspect.signature(getattr(agentrl, name)).parameters]


@pytest.mark.parametrize("table", ["episodes", "turns", "calls", "rewards"])
def test_the_columns_of_the_page_are_there(table: str, tmp_path: Path) -> None:
    from agentrl.store.run_dir import RunDir

    RunDir.create(tmp_path / "run").close()
    (row,) = re.findall(rf"^\| `run.{table}` \|[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
    columns = getattr(agentrl.open_run(tmp_path / "run"), table).columns
    assert set(re.findall(r"`(\w+)`", row)) <= set(columns)
    assert "..." in row or set(re.findall(r"`(\w+)`", row)) == set(columns)
