"""Errors of settings with several forms."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.types.forms import united


class Near(BaseModel):
    model_config = ConfigDict(extra="forbid")
    within: int


class Far(BaseModel):
    model_config = ConfigDict(extra="forbid")
    beyond: int
    unit: Literal["m", "km"]


class Setting(BaseModel):
    where: Literal["here"] | Near | Far
    size: int | list[str] = 1
    many: dict[str, float | Near] = {}


@pytest.mark.parametrize(("data", "expected"), [
    ({"where": 3}, [("where", "must be 'here', or a section of keys")]),
    ({"where": "there", "size": "x"}, [("where", "must be 'here', or a section of keys"),
                                       ("size", "must be a whole number, or a list")]),
    ({"where": {"within": "x"}}, [("where.within", "Input should be a valid integer, unable to parse string as an "
                                   "integer")]),
    ({"where": {"beyond": 1, "unit": "mile"}}, [("where.unit", "Input should be 'm' or 'km'")]),
    ({"where": "here", "many": {"str": {"within": 1, "x": 2}}}, [("many.str.x", "Extra inputs are not permitted")]),
    ({"size": 2}, [("where", "Field required")]),
])  # fmt: skip
def test_each_setting_has_one_error(data: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    with pytest.raises(ValidationError) as caught:
        Setting.model_validate(data)
    found = [(".".join(map(str, each["loc"])), each["msg"]) for each in united(caught.value.errors(), data)]
    assert found == expected
