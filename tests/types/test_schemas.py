"""JSON schemas of others: what a bare text stands for, what fits, and what a prompt says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.types.parts.schemas import Argument, arguments, complaint, required

STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
DEFS: dict[str, Any] = {"Code": STRING, "Count": INTEGER, "Alias": {"$ref": "#/$defs/Code"}, "a/b~c": STRING}

READ = [
    # Strings that look like JSON stay strings, however the schema says that they are.
    ({"type": ["string", "null"]}, "12345", "12345"),
    ({"type": ["null", "string"]}, "true", "true"),
    ({"oneOf": [STRING, NULL]}, "007", "007"),
    ({"oneOf": [NULL, STRING]}, '{"name": "x"}', '{"name": "x"}'),
    ({"anyOf": [{"type": ["string"]}, NULL]}, "1e5", "1e5"),
    ({"allOf": [STRING, {"description": "a zip"}]}, "10001", "10001"),
    ({"$ref": "#/$defs/Code"}, "99", "99"),
    ({"$ref": "#/$defs/Alias", "description": "d"}, "99", "99"),
    ({"$ref": "#/$defs/a~1b~0c"}, "99", "99"),
    ({"anyOf": [{"$ref": "#/$defs/Code"}, NULL]}, "99", "99"),
    ({"const": "1"}, "1", "1"),
    ({"enum": ["1", "2"]}, "2", "2"),
    ({"type": "string", "nullable": True}, "5", "5"),
    ({"type": ["string", "integer"]}, "12", "12"),
    ({"type": "string", "minLength": 9}, "12", "12"),
    # Everything else is JSON.
    ({"type": ["integer", "null"]}, "12", 12),
    ({"oneOf": [INTEGER, {"type": "array"}]}, "[1, 2]", [1, 2]),
    ({"$ref": "#/$defs/Count"}, " 3\n", 3),
    ({"const": 1}, "1", 1),
    ({"enum": [1, "a"]}, "1", 1),
    ({"enum": [1, "a"]}, "a", "a"),
    ({"allOf": [{"$ref": "#/$defs/Count"}]}, "7", 7),
    ({}, "3", 3),
    ({}, "some words", "some words"),
    ({"type": "float"}, "2.5", 2.5),
    # Null, and constants as Jinja prints them.
    ({"type": ["string", "null"]}, "null", None),
    ({"type": "string", "nullable": True}, "None", None),
    ({"type": ["string", "null"], "enum": ["None", "a", None]}, "None", "None"),
    (STRING, "null", "null"),
    (STRING, "True", "True"),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "false", False),
    ({"anyOf": [{"type": "boolean"}, NULL]}, "None", None),
    ({"oneOf": [{"type": "boolean"}, INTEGER]}, "False", False),
    ({"type": "integer"}, "True", "True"),
    # What fits in no way: the tool says so.
    (INTEGER, "many", "many"),
    (INTEGER, '"3"', "3"),
    ({"enum": ["a", "b"]}, "3", "3"),
    ({"type": "object"}, "[1]", [1]),
]


@pytest.mark.parametrize(("schema", "text", "value"), READ)
def test_what_a_bare_text_stands_for(schema: dict[str, Any], text: str, value: Any) -> None:
    read = Argument({"$defs": DEFS}, schema).value(text, json.loads)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "text", "is_text", "value"),
    [
        ({}, "3", True, "3"),
        ({"type": ["string", "integer"]}, "3", False, 3),
        ({"type": ["string", "null"]}, "null", True, "null"),
        (STRING, "3", False, "3"),
        (INTEGER, "3", True, 3),
        (STRING, "a b", False, "a b"),
    ],
)
def test_what_the_model_wrote_beside_it_decides_between_what_fits(
    schema: dict[str, Any], text: str, is_text: bool, value: Any
) -> None:
    assert Argument({}, schema).value(text, json.loads, is_text=is_text) == value


MODE = {"mode": {"enum": ["a", "b"]}}


@pytest.mark.parametrize(
    ("schema", "fits", "refused"),
    [
        ({"allOf": [{"properties": MODE, "required": ["mode"]}]}, {"mode": "a"}, {"mode": "c"}),
        ({"allOf": [{"properties": MODE, "required": ["mode"]}]}, {"mode": "a"}, {}),
        ({"allOf": [{"properties": MODE}], "properties": {"n": INTEGER}}, {"mode": "a", "n": 1}, {"mode": "a", "x": 1}),
        ({"anyOf": [{"properties": MODE, "required": ["mode"]}, {"required": ["n"]}]}, {"mode": "a"}, {}),
        ({"oneOf": [{"properties": MODE}, {"properties": {"n": INTEGER}}]}, {"n": 2}, {"k": 1}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": MODE}}}, {"mode": "b"}, {"mode": 1}),
        ({"if": {}, "then": {"properties": MODE}, "properties": {"n": INTEGER}}, {"mode": "a", "n": 1}, {"k": 1}),
        ({"patternProperties": {"^x-": INTEGER}}, {"x-a": 1}, {"x-a": "1"}),
        ({"patternProperties": {"^x-": INTEGER}}, {"x-a": 1}, {"y": 1}),
        ({"properties": {}, "additionalProperties": INTEGER}, {"any": 3}, {"any": "3"}),
        ({"properties": {"a": False, "b": True}}, {"b": 1}, {"a": 1}),
        (
            {"properties": {"a": {"prefixItems": [INTEGER, STRING], "items": False}}},
            {"a": [1, "x"]},
            {"a": [1, "x", 2]},
        ),
        ({"properties": {"a": {"items": [INTEGER, STRING]}}}, {"a": [1, "x", 2]}, {"a": ["x"]}),
        ({"properties": {"a": {"enum": [1]}}}, {"a": 1}, {"a": True}),
        ({"properties": {"a": {"const": 1}}}, {"a": 1.0}, {"a": True}),
        ({"properties": {"a": {"type": "string", "nullable": True}}}, {"a": None}, {"a": 1}),
        ({"properties": {"a": {"allOf": [STRING, {"enum": ["x"]}]}}}, {"a": "x"}, {"a": "y"}),
        ({"properties": {"a": {"$ref": "#/$defs/L/0"}}, "$defs": {"L": [STRING]}}, {"a": "x"}, {"a": 1}),
    ],
)
def test_arguments_are_held_against_all_of_a_schema(
    schema: dict[str, Any], fits: dict[str, Any], refused: dict[str, Any]
) -> None:
    assert complaint(schema, fits) is None
    assert complaint(schema, refused)


def test_what_names_no_arguments_lets_all_pass() -> None:
    assert complaint({"type": "object"}, {"mode": 1}) is None
    assert complaint({"$ref": "https://example.org/args.json"}, {"mode": 1}) is None
    assert "allowed: []" in str(complaint({"type": "object", "properties": {}}, {"mode": 1}))


def test_the_complaint_tells_all_that_would_do() -> None:
    options = {"properties": {"a": {"oneOf": [STRING, NULL, {"type": "array"}]}}}
    assert complaint(options, {"a": 1}) == "argument 'a': should be string or null or array"


def test_what_prompts_say() -> None:
    root: dict[str, Any] = {
        "$defs": DEFS,
        "allOf": [{"properties": {"zip": {"$ref": "#/$defs/Code", "description": "a zip"}}, "required": ["zip"]}],
        "properties": {"n": {"type": ["integer", "null"], "minimum": 1}, "m": {"oneOf": [INTEGER, {"const": "all"}]}},
        "required": ["n", "n"],
    }
    assert list(arguments(root)) == ["n", "m", "zip"]
    assert required(root) == ["n", "zip"]
    told = {name: Argument(root, schema) for name, schema in arguments(root).items()}
    assert {name: each.type_name for name, each in told.items()} == {
        "n": "integer",
        "m": 'integer|"all"',
        "zip": "string",
    }
    assert {name: each.placeholder for name, each in told.items()} == {"n": 1, "m": 1, "zip": "..."}
    assert told["zip"].description == "a zip"
    assert [told[name].takes_text for name in ("n", "m", "zip")] == [False, True, True]


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_schemas_that_hold_themselves_end(keyword: str) -> None:
    """Each of 40 names refers twice to the next: 2^40 ways."""
    chain = {f"n{k}": {keyword: [{"$ref": f"#/$defs/n{k + 1}"}] * 2} for k in range(40)}
    root: dict[str, Any] = {"$defs": {**chain, "me": {keyword: [{"$ref": "#/$defs/me"}] * 2}}, "properties": {}}
    for name in ("n0", "me"):
        root["properties"] = {"a": {"$ref": f"#/$defs/{name}"}}
        told = Argument(root, root["properties"]["a"])
        assert complaint(root, {"a": 1}) is None
        assert (told.type_name, told.placeholder, told.value("3", json.loads)) == ("any", "...", 3)
        top = {**root["$defs"][name], "$defs": root["$defs"]}
        assert (arguments(top), required(top), complaint(top, {"x": 1})) == ({}, [], None)


def test_schemas_that_are_none_let_all_pass() -> None:
    for odd in (None, 3, "x", [], {"properties": []}, {"allOf": {}}, {"enum": 3}, {"required": "a"}, {"type": {}}):
        assert arguments(odd) == {}
        assert required(odd) == []
        assert complaint({"properties": {"a": odd}}, {"a": 1}) is None


def test_patterns_that_might_take_for_ever_are_passed_over() -> None:
    for pattern in ("(a+)+$", "(a|a)*$", "a*a*a*a*a*b", "(", "a{,999}{,999}"):
        assert complaint({"patternProperties": {pattern: {}}}, {"a" * 60 + "!": 1}) is None
