"""The page docs/python.md, executed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import agentrl
from tests.command import commands

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


def column(number: int) -> str:
    """A column of the table of public names."""
    table = PAGE.partition("| command | Python | does |\n")[2].partition("\n\n")[0]
    return "\n".join(line.split("|")[number] for line in table.splitlines()[1:])


def test_the_table_holds_every_command_and_every_name_of_the_package_once() -> None:
    assert sorted(re.findall(r"`(.+?)`", column(1))) == sorted(commands())
    assert sorted(re.findall(r"`(\w+)", column(2))) == sorted(agentrl.__all__)


FUNCTIONS = dict(re.findall(r"`(\w+)\((.*?)\)`", column(2)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_arguments_are_those_of_the_page(name: str) -> None:
    names = [part.split("=")[0].strip() for part in FUNCTIONS[name].split(",")]
    assert [part for part in names if part != "*"] == [*inspect.signature(getattr(agentrl, name)).parameters]


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() & commands().keys()))
def test_an_option_of_a_command_is_the_parameter_of_its_name(name: str) -> None:
    shows = {"as_json"} | {"credit": {"episode", "iteration", "limit"}, "probe": {"episodes"}}.get(name, set())
    options = {each.name for each in commands()[name].params} - shows
    assert options == inspect.signature(getattr(agentrl, name)).parameters.keys() - {"reporters"}


@pytest.mark.parametrize("table", ["episodes", "turns", "calls", "rewards"])
def test_the_columns_of_the_page_are_there(table: str, tmp_path: Path) -> None:
    from agentrl.store.run_dir import RunDir

    RunDir.create(tmp_path / "run").close()
    (row,) = re.findall(rf"^\| `run.{table}` \|[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
    columns = getattr(agentrl.open_run(tmp_path / "run"), table).columns
    assert set(re.findall(r"`(\w+)`", row)) <= set(columns)
    assert "..." in row or set(re.findall(r"`(\w+)`", row)) == set(columns)


def test_every_function_that_takes_a_recipe_takes_a_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown key is told as of any recipe."""
    monkeypatch.chdir(tmp_path)
    from agentrl.store.run_dir import RunDir
    from agentrl.types.errors import RecipeError
    from tests.store.make import make_episode

    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("a", reward=1.0))
    takes = {name for name, given in FUNCTIONS.items() if re.match(r"recipe|what|name|run, recipe", given)}
    assert takes == {"check_environment", "eval", "load_recipe", "rescore", "rollout", "train"}
    for name in sorted(takes):
        given = ([str(tmp_path / "run")] if name == "rescore" else []) + [{"name": "mine", "sead": 1}]
        with pytest.raises(RecipeError, match="sead: unknown key"):
            getattr(agentrl, name)(*given)
    assert agentrl.load_recipe({"name": "mine", "seed": 1}, {"seed": 2}).seed == 2
