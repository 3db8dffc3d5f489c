"""Tools from a JSON schema: what fits, what does not, and who may be one."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl import tool
from agentrl.tools.base import FunctionTool
from agentrl.tools.methods import methods_of
from agentrl.tools.schema import defined_tool
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.parts.schemas import complaint

STRING = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": STRING,
        "nights": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["single", "double"]},
        "who": {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1},
        "price": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
        "odd": {"type": "float"},
    },
    "required": ["city"],
    "$defs": {"person": {"type": "object", "properties": {"name": STRING}, "required": ["name"]}},
}


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"city": "Oslo"}, None),
        ({"city": "Oslo", "nights": 2, "kind": "double", "who": [{"name": "a", "more": 1}], "price": None}, None),
        ({"city": "Oslo", "price": 2.5, "odd": "anything"}, None),
        ({}, "argument 'city': field required"),
        ({"city": 1}, "argument 'city': should be string"),
        ({"city": "Oslo", "nights": True}, "argument 'nights': should be integer"),
        ({"city": "Oslo", "nights": 2.0}, None),
        ({"city": "Oslo", "nights": 2.5}, "argument 'nights': should be integer"),
        ({"city": "Oslo", "nights": float("inf")}, "argument 'nights': should be integer"),
        ({"city": "Oslo", "nights": float("nan")}, "argument 'nights': should be integer"),
        ({"city": "Oslo", "nights": 0}, "argument 'nights': should be at least 1"),
        ({"city": "Oslo", "nights": 10}, "argument 'nights': should be at most 9"),
        ({"city": "Oslo", "kind": "royal"}, 'argument \'kind\': should be one of ["single", "double"]'),
        ({"city": "Oslo", "who": []}, "argument 'who': should have at least 1 items"),
        ({"city": "Oslo", "who": [{"name": "a"}, {}]}, "argument 'who.1.name': field required"),
        ({"city": "Oslo", "price": 0}, "argument 'price': should be above 0"),
        ({"city": "Oslo", "stars": 5}, "unknown argument 'stars'; allowed: ['city', 'kind', 'nights'"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], wrong: str | None) -> None:
    found = complaint(SCHEMA, arguments)
    assert found is None if wrong is None else (found or "").startswith(wrong)


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree: dict[str, Any] = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    value: dict[str, Any] = {}
    for _ in range(500):
        value = {"child": value}
    assert complaint(tree, value) is None
    assert complaint({"$ref": "#"}, {}) is None


async def test_a_tool_from_a_schema_runs_on_a_copy() -> None:
    seen: list[Any] = []

    def book(arguments: dict[str, Any]) -> Any:
        seen.append(arguments.pop("self"))
        arguments["x-y"].append(3)
        return arguments

    made = tool.from_schema("book", "Book it.", {"properties": {"self": {}, "x-y": {}}}, book)
    (method,) = methods_of(FunctionTool(made))
    given = {"self": 1, "x-y": [2]}
    assert (await method.call(given)).text == '{"x-y": [2, 3]}'
    assert (seen, given) == ([1], {"self": 1, "x-y": [2]})
    assert method.definition()["function"]["parameters"]["type"] == "object"
    assert "test_schema_tools.py" in method.place
    with pytest.raises(ToolError, match="unknown argument 'z'"):
        await method.call({"z": 1})


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("", {}, "has no name"),
        ("f", {"type": "array"}, 'describes "array", not an object'),
        ("f", {"properties": ["name"]}, "not an object with properties"),
        ("f", {"default": {1, 2}}, "no JSON"),
    ],
)
def test_a_schema_that_cannot_be(name: str, schema: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tool.from_schema(name, "", schema, print)


def test_definitions_come_with_and_without_their_wrapping() -> None:
    inner = {"name": "f", "description": None, "parameters": None}
    for definition in (inner, {"type": "function", "function": inner}):
        assert defined_tool(definition, print).schema == {"properties": {}, "type": "object"}


def test_nested_options_are_looked_at_once() -> None:
    """Six options on each of 9 levels would be looked at 6^9 times."""
    options = [{"type": "object", "properties": {"of": {"$ref": "#/$defs/E"}}, "required": ["op"]} for _ in range(6)]
    tree = {"type": "object", "properties": {"e": {"$ref": "#/$defs/E"}}, "$defs": {"E": {"anyOf": options}}}
    value: dict[str, Any] = {}
    for _ in range(9):
        value = {"of": value, "op": "not"}
    assert complaint(tree, {"e": value}) == f"argument 'e{'.of' * 9}.op': field required"


def test_bounds_of_the_old_draft_let_everything_pass() -> None:
    bounds = {"minimum": 0, "exclusiveMinimum": True, "exclusiveMaximum": False}
    assert complaint({"properties": {"n": bounds}}, {"n": 0.5}) is None
