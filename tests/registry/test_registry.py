"""One rule for every plug-in: how it is named, what can be set about it, and what is said of one that does not fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from pydantic import BaseModel, ConfigDict, Field

from agentrl.registry.contract import misfit
from agentrl.registry.registry import Registry, any_class, any_function, subclass_of
from agentrl.registry.settings import declared
from agentrl.types.errors import RecipeError


class Base:
    async def open(self, name: str, *, quick: bool = False) -> None: ...

    def close(self) -> None: ...


class Plain(Base):
    def __init__(self, host: str = "here", port: int = 1) -> None:
        self.host, self.port = host, port


class Limits(BaseModel):
    model_config = ConfigDict(extra="forbid")

    low: float = 0.0
    high: float = Field(1.0, gt=0)


class Whole(Base):
    def __init__(self, limits: Limits) -> None:
        self.limits = limits


class Attribute(Base):
    Settings: ClassVar[type[BaseModel]] = Limits

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings


THINGS: Registry[type[Base]] = Registry(
    kind="thing",
    key="thing",
    built_in={"plain": f"{__name__}:Plain", "whole": f"{__name__}:Whole", "attribute": f"{__name__}:Attribute"},
    wanted="a Base subclass",
    accept=subclass_of(Base),
    contracts=[Base],
    aliases={"simple": "plain"},
)
RULES: Registry[Callable[..., Any]] = Registry(
    kind="rule", key="rules.0", built_in={}, wanted="a function (table, ...)", accept=any_function, leading=("table",)
)
ASKERS: Registry[Callable[..., Any]] = Registry(
    kind="asker", key="asker", built_in={}, wanted="a function", accept=any_function, filled=("task", "episode")
)


def test_a_name_a_module_a_file_or_the_object_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"from {__name__} import Base\n\nclass Mine(Base):\n    pass\n")
    assert THINGS.find("plain") is THINGS.find("simple") is THINGS.find(f"{__name__}:Plain") is THINGS.find(Plain)
    assert THINGS.find("./mine.py:Mine", tmp_path).__name__ == "Mine"


def test_a_name_that_is_none() -> None:
    with pytest.raises(RecipeError, match=r"there is no thing 'plane'") as error:
        THINGS.find("plane", place="things.3")
    assert error.value.place == "things.3"
    assert "did you mean 'plain'?" in str(error.value)
    assert "./file.py:Name" in str(error.value)


def test_a_built_in_is_imported_when_it_is_named() -> None:
    broken: Registry[type[Base]] = Registry("x", "x", {"a": "no.such.module:A"}, "a class", subclass_of(Base))
    with pytest.raises(RecipeError, match="no module 'no'"):
        broken.find("a")


@pytest.mark.parametrize(
    ("use", "given", "attributes"),
    [
        ("plain", {"port": "8"}, {"host": "here", "port": 8}),
        ("whole", {"high": 2}, {"limits": Limits(high=2)}),
        ("attribute", {}, {"settings": Limits()}),
    ],
)
def test_settings_reach_the_plug_in_however_they_are_declared(
    use: str, given: dict[str, Any], attributes: dict[str, Any]
) -> None:
    assert vars(THINGS.load(use, given).make()) == attributes


@pytest.mark.parametrize(
    ("use", "given", "place", "message"),
    [
        (
            "plain",
            {"prot": 1},
            "thing.prot",
            r"plain has no setting 'prot'.*\n.*did you mean 'port'\? its settings: host",
        ),
        ("plain", {"plain": {"port": 8}}, "thing.plain", r"no setting 'plain'\n  -> .*: --set thing.port=\.\.\."),
        ("plain", {"port": "x"}, "thing.port", r"valid integer.*found 'x' \(str\)"),
        ("whole", {"high": -1}, "thing.high", r"greater than 0, found -1"),
        ("attribute", {"hihg": 1}, "thing.hihg", r"attribute has no setting 'hihg'"),
    ],
)
def test_settings_that_do_not_fit(use: str, given: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as error:
        THINGS.load(use, given)
    assert error.value.place == place


def test_references_in_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(): ...\n")
    found = THINGS.load("plain", {"host": "./x.txt"}, tmp_path).make()
    assert found.host == str(tmp_path / "x.txt")


def test_the_wrong_base(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"from {__name__} import Base\n\nclass Other:\n    pass\n\nclass Mine(Base):\n    pass\n"
    )
    with pytest.raises(RecipeError, match=r"Other is a class \(.*mine.py:3\), not a Base subclass") as error:
        THINGS.find("./mine.py:Other", tmp_path)
    assert "defines: Mine" in str(error.value)
    with pytest.raises(RecipeError, match="not a Base subclass"):
        THINGS.find(Base)


class NoWay(Base):
    async def open(self, name: str) -> None: ...  # type: ignore[override]


class NotAsync(Base):
    def open(self, name: str, *, quick: bool = False) -> None: ...  # type: ignore[override]


class Delegates(Base):
    def open(self, *args: Any, **kwargs: Any) -> Any: ...

    @staticmethod
    def close() -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (NoWay, r"open takes \(self, name: 'str'\).*is called as open\(self, name: 'str', \*, quick"),
        (NotAsync, r"open must be 'async def'"),
    ],
)
def test_the_wrong_signature(cls: type, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as error:
        THINGS.find(cls)
    assert error.value.place == "thing"


class Contract(Protocol):
    name: str

    @property
    def size(self) -> int: ...

    def close(self) -> None: ...


def test_a_protocol_is_a_contract_without_a_base() -> None:
    class Lacking:
        name = "x"

    things: Registry[type] = Registry("thing", "thing", {}, "a class with close()", any_class, [Contract])
    with pytest.raises(RecipeError, match=r"lacks the method close\(self\)"):
        things.find(Lacking)
    assert misfit(Plain, Contract) is None
    assert misfit(Delegates, Base) == "open must be 'async def'"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 0, r"takes \(\), and is called with \(table\)"),
        (lambda *, table: 0, r"is called with \(table\)"),
    ],
)
def test_a_function_that_cannot_be_called_so(function: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as error:
        RULES.load(function, {})
    assert error.value.place == "rules.0"


def test_functions_take_what_is_filled_and_settings() -> None:
    def ask(task: str, key: str, episode: int = 0) -> str:
        return f"{task} {key} {episode}"

    def lost(eposide: int) -> None: ...

    def open_ended(task: str, **more: Any) -> None: ...

    assert ASKERS.load(ask, {"key": "k"}).make(task="t", episode=3) == "t k 3"
    with pytest.raises(RecipeError, match="asks? needs the setting 'key'|needs the setting 'key'"):
        ASKERS.load(ask, {})
    with pytest.raises(RecipeError, match=r"'eposide' that nothing fills.*\n.*did you mean 'episode'"):
        ASKERS.load(lost, {})
    with pytest.raises(RecipeError, match=r"cannot take \*\*more"):
        ASKERS.load(open_ended, {})


def test_odd_parameters_are_settings_or_none() -> None:
    class Talker(Protocol):
        def talk(self) -> None: ...

    def odd(schema: dict[str, int] | None = None, talker: Talker | None = None, _hidden: int = 0, **more: Any) -> Any:
        return schema, talker, more

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pydantic warns of a field `schema`
        found = declared(odd)
    assert list(found.model.model_fields) == ["schema", "talker"]
    settings = found.model.model_validate({"schema": {"a": "1"}, "talker": object, "x": 2})
    assert found.arguments(settings) == {"schema": {"a": 1}, "talker": object, "x": 2}


def test_a_lone_model_is_all_settings_unless_it_is_given_by_name_alone() -> None:
    def whole(limits: Limits) -> Any:
        return limits

    def named(*, limits: Limits) -> Any:
        return limits

    assert list(declared(whole).model.model_fields) == ["low", "high"]
    assert list(declared(named).model.model_fields) == ["limits"]


def test_annotations_that_exist_for_type_checkers_only(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from nowhere import Table\n\n"
        "def mine(table: Table, scale: float, other: Table | None = None): return scale\n"
    )
    assert RULES.load("./mine.py:mine", {"scale": "2"}, tmp_path).make(None) == 2.0
