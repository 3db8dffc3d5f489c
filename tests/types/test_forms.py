"""Errors of settings with several forms."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.types.forms import united


class Near(BaseModel):
    model_config = ConfigDict(extra="forbid")
    within: int


class Far(BaseModel):
    model_config = ConfigDict(extra="forbid")
    beyond: int
    unit: Literal["m", "km"]


class Capital(BaseModel):
    Query: int


class Cat(BaseModel):
    kind: Literal["cat"]
    age: int


class Dog(BaseModel):
    kind: Literal["dog"]


@dataclass
class Point:
    x: int


class Short(Near):
    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, given: Any) -> Any:
        return given if isinstance(given, dict) else {"within": given}


class Wide(BaseModel):
    model_config = ConfigDict(extra="forbid")
    level: int | bool | list[int] = 1
    name: str = ""


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("odd")
    return value


class Setting(BaseModel):
    where: Literal["here"] | Near | Far
    size: int | list[str] = 1
    many: dict[str, float | Near] = {}
    cap: Capital | int = 1
    bound: Annotated[int, Field(gt=5)] | Near = 6
    even: Annotated[int, AfterValidator(_even)] | bool = 2
    day: date | int = 1
    pair: tuple[int | bool, str] = (1, "")
    counts: dict[int, str] = {}
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | int = 1
    plain: Point | int = 1
    short: Short = Short(within=1)
    wide: Far | Wide | dict[str, Near | int] = {}


_NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"
HERE: dict[str, Any] = {"where": "here"}


@pytest.mark.parametrize(("data", "expected"), [
    ({"where": 3}, [("where", "must be 'here', or a section of keys")]),
    ({"where": "there", "size": "x"}, [("where", "must be 'here', or a section of keys"),
                                       ("size", "must be a whole number, or a list")]),
    ({"where": {"within": "x"}}, [("where.within", "Input should be a valid integer, unable to parse string as an "
                                   "integer")]),
    ({"where": {"beyond": 1, "unit": "mile"}}, [("where.unit", "Input should be 'm' or 'km'")]),
    ({"where": "here", "many": {"str": {"within": 1, "x": 2}}}, [("many.str.x", "Extra inputs are not permitted")]),
    ({"size": 2}, [("where", "Field required")]),
    # A key that is missing keeps its name, if it begins with a capital too.
    (HERE | {"cap": {}}, [("cap.Query", "Field required")]),
    # A value that has one of the forms is told what is wrong with it.
    (HERE | {"size": ["a", 1]}, [("size.1", "Input should be a valid string")]),
    (HERE | {"bound": 3}, [("bound", "Input should be greater than 5")]),
    (HERE | {"even": 3}, [("even", "Value error, odd")]),
    (HERE | {"plain": {}}, [("plain.x", "Field required")]),
    (HERE | {"plain": {"x": "a"}}, [("plain.x", _NO_INTEGER)]),
    (HERE | {"pet": {"kind": "cat", "age": "a"}}, [("pet.age", _NO_INTEGER)]),
    # The errors of one setting count once.
    (HERE | {"wide": {"level": "a", "name": ""}},
     [("wide.level", "must be a whole number, or true or false, or a list")]),
    (HERE | {"wide": {"a": {"within": "a"}, "b": 1}}, [("wide.a.within", _NO_INTEGER)]),
    # No name of a form is left.
    (HERE | {"day": "a"}, [("day", "must be a valid date or datetime, input is too short, or a whole number")]),
    (HERE | {"pair": ("a", 1)}, [("pair.0", "must be a whole number, or true or false"),
                                 ("pair.1", "Input should be a valid string")]),
    (HERE | {"plain": "a"}, [("plain", "must be a section of keys, or a whole number")]),
    # A validator may make a section of a value.
    (HERE | {"short": "a"}, [("short.within", _NO_INTEGER)]),
    # The error of a key is none of its value.
    (HERE | {"counts": {"a": "a"}}, [("counts.a.[key]", _NO_INTEGER)]),
])  # fmt: skip
def test_each_setting_has_one_error(data: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    with pytest.raises(ValidationError) as caught:
        Setting.model_validate(data)
    found = [(".".join(map(str, each["loc"])), each["msg"]) for each in united(caught.value.errors(), data)]
    assert found == expected
