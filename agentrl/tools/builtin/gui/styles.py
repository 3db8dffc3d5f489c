"""Action spaces of the `gui` tool, selected by `actions`.

Names and arguments match the training of common models: `computer` is Anthropic's computer tool (20250124),
`computer_use` the function of Qwen2.5-VL and Qwen3-VL, `gui_r1` the unified action space of GUI-R1, `functions` one
function per action with the names of `computer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrl.tools.base import tool
from agentrl.tools.schema import SchemaTool
from agentrl.types.errors import ToolError

Act = Callable[[str, Mapping[str, Any]], Any]
"""Performs an action, given its name and its arguments by the names in `ARGUMENTS`."""


@dataclass(frozen=True)
class Action:
    """Definition of an action.

    Attributes:
        needs: required arguments.
        takes: optional arguments.
    """

    about: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


ACTIONS: dict[str, Action] = {
    "screenshot": Action("Look at the screen."),
    "mouse_move": Action("Move the pointer.", ("coordinate",)),
    "left_click": Action("Click with the left button.", ("coordinate",)),
    "double_click": Action("Double-click with the left button.", ("coordinate",)),
    "triple_click": Action("Triple-click with the left button.", ("coordinate",)),
    "right_click": Action("Click with the right button.", ("coordinate",)),
    "middle_click": Action("Click with the middle button.", ("coordinate",)),
    "left_click_drag": Action(
        "Drag with the left button, from start_coordinate or the pointer.", ("coordinate",), ("start_coordinate",)
    ),
    "type": Action("Type a text; a line break is the Return key.", ("text",)),
    "key": Action("Press a key or several together: Return, ctrl+s.", ("text",)),
    "scroll": Action("Turn the wheel.", ("scroll_direction",), ("coordinate", "scroll_amount")),
    "wait": Action("Wait, then look.", (), ("duration",)),
    "done": Action("Say that the task is done, with the answer if one was asked for.", (), ("text",)),
}
"""Actions by name."""

WAIT_S = 30.0
"""Maximum seconds of `wait`."""
_POINT = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "coordinate": {**_POINT, "description": "[x, y]"},
    "start_coordinate": {**_POINT, "description": "[x, y] where a drag begins"},
    "text": {"type": "string", "description": "what to type, the keys to press, or the answer"},
    "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
    "scroll_amount": {"type": "integer", "minimum": 1, "maximum": 50, "description": "clicks of the wheel"},
    "duration": {"type": "number", "minimum": 0, "maximum": WAIT_S, "description": "seconds"},
}
ELEMENT = {"type": "integer", "description": "number of an element of the last list, instead of a coordinate"}
_QWEN_KINDS: dict[str, dict[str, Any]] = {
    "keys": {"type": "array", "items": {"type": "string"}, "description": "for key"},
    "text": {"type": "string", "description": "for type and answer"},
    "coordinate": {**_POINT, "description": "[x, y], for mouse actions"},
    "pixels": {"type": "number", "description": "for scroll: upwards if positive"},
    "time": {"type": "number", "minimum": 0, "maximum": WAIT_S, "description": "seconds, for wait"},
    "status": {"type": "string", "enum": ["success", "failure"], "description": "for terminate"},
}
_QWEN = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
         "triple_click", "scroll", "wait", "answer", "terminate")  # fmt: skip
_R1_KINDS: dict[str, dict[str, Any]] = {
    "point": {**_POINT, "description": "[x, y], for click, and for type and scroll if there is one"},
    "input_text": {"type": "string", "description": "what to type, up, down, left or right for scroll, or the answer"},
}
_R1 = {"click": "left_click", "type": "type", "scroll": "scroll", "press_back": "key", "enter": "key",
       "complete": "done"}  # fmt: skip
_R1_KEYS = {"press_back": "alt+Left", "enter": "Return"}
QWEN_PIXELS = 100
"""`pixels` of `computer_use` per click of the wheel."""


def computer(act: Act, where: str, elements: bool) -> list[SchemaTool]:
    """Makes one function, `computer(action, coordinate, ...)`."""
    lines = "\n".join(f"- {name}: {action.about}" for name, action in ACTIONS.items())
    properties = {"action": {"type": "string", "enum": [*ACTIONS]}, **_arguments(ARGUMENTS, elements)}

    async def call(given: dict[str, Any]) -> Any:
        name = given.pop("action")
        return await act(name, _checked(name, given))

    about = f"Use the mouse and the keyboard. Coordinates are {where}.\n{lines}"
    return [tool.from_schema("computer", about, _schema(properties, ("action",)), call)]


def functions(act: Act, where: str, elements: bool) -> list[SchemaTool]:
    """Makes one function per action."""

    def made(name: str, action: Action) -> SchemaTool:
        names = (*action.needs, *action.takes)
        needs = tuple(each for each in action.needs if not (elements and each == "coordinate"))
        properties = _arguments({each: ARGUMENTS[each] for each in names}, elements and "coordinate" in names)
        said = f" Coordinates are {where}." if "coordinate" in names else ""

        async def call(given: dict[str, Any]) -> Any:
            return await act(name, _checked(name, given))

        return tool.from_schema(name, action.about + said, _schema(properties, needs), call)

    return [made(name, action) for name, action in ACTIONS.items()]


def computer_use(act: Act, where: str, elements: bool) -> list[SchemaTool]:
    """Makes Qwen's single function: other arguments, without `screenshot`, with `terminate` for `done`."""
    properties = {"action": {"type": "string", "enum": [*_QWEN]}, **_arguments(_QWEN_KINDS, elements)}

    async def call(given: dict[str, Any]) -> Any:
        name = given.pop("action")
        return await act(*_from_qwen(name, given))

    about = f"Use a mouse and keyboard to interact with a computer. Coordinates are {where}."
    return [tool.from_schema("computer_use", about, _schema(properties, ("action",)), call)]


def gui_r1(act: Act, where: str, elements: bool) -> list[SchemaTool]:
    """Makes the unified action space of GUI-R1 (arXiv:2504.10458) as one function, without phone-only actions."""
    properties = {"action": {"type": "string", "enum": [*_R1]}, **_arguments(_R1_KINDS, elements)}

    async def call(given: dict[str, Any]) -> Any:
        there = {key: value for key, value in given.items() if value is not None}
        name, text = there.pop("action"), there.pop("input_text", "")
        rest = {"coordinate" if key == "point" else key: value for key, value in there.items()}
        action = _from_r1(name, rest, text)
        if name != "type" or not rest:
            return await act(*action)
        clicked = await act("left_click", rest)
        return replace(await act(*action), points=clicked.points)

    return [tool.from_schema("act", f"Act on the screen. Points are {where}.", _schema(properties, ("action",)), call)]


STYLES: dict[str, Callable[[Act, str, bool], list[SchemaTool]]] = {
    "computer": computer,
    "computer_use": computer_use,
    "gui_r1": gui_r1,
    "functions": functions,
}
"""Action spaces by the value of `actions`."""


def _from_qwen(name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Converts a call of `computer_use` to one of our actions.

    Raises:
        ToolError: a required argument is missing.
    """
    if name == "key" and not (given.get("keys") or given.get("text")):
        raise ToolError("key needs the argument 'keys'")
    if name == "scroll" and given.get("pixels") is None:
        raise ToolError("scroll needs the argument 'pixels'")
    rest: dict[str, Any] = {key: given[key] for key in ("coordinate", "element", "text") if given.get(key) is not None}
    if name == "key":
        keys = given.get("keys") or given.get("text")
        return "key", {"text": keys if isinstance(keys, str) else "+".join(keys or ())}
    if name == "scroll":
        pixels = float(given["pixels"])
        direction = "up" if pixels > 0 else "down"
        amount = min(50, max(1, round(abs(pixels) / QWEN_PIXELS)))
        return "scroll", {**rest, "scroll_direction": direction, "scroll_amount": amount}
    if name == "wait":
        return "wait", {"duration": given.get("time", 1.0)}
    if name in ("answer", "terminate"):
        return "done", {"text": given.get("text") or given.get("status") or ""}
    return name, _checked(name, rest)


def _from_r1(name: str, rest: dict[str, Any], text: str) -> tuple[str, dict[str, Any]]:
    """Converts an action of `gui_r1` to one of ours; `rest` is the location.

    Raises:
        ToolError: a required argument is missing.
    """
    if name == "scroll":
        directions = ARGUMENTS["scroll_direction"]["enum"]
        if text not in directions:
            raise ToolError(f"scroll needs input_text: {', '.join(directions)}; found {text!r}")
        return "scroll", {**rest, "scroll_direction": text}
    if name == "click":
        if not rest:
            raise ToolError("click needs the argument 'point'")
        return "left_click", rest
    if name == "type" and not text:
        raise ToolError("type needs the argument 'input_text'")
    return _R1[name], {"text": _R1_KEYS.get(name, text)}


def _checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Drops null arguments and checks the required ones.

    Raises:
        ToolError: a required argument is missing.
    """
    there = {key: value for key, value in given.items() if value is not None}
    for needed in ACTIONS[name].needs:
        if needed not in there and not (needed == "coordinate" and "element" in there):
            raise ToolError(f"{name} needs the argument {needed!r}")
    return there


def _arguments(kinds: Mapping[str, dict[str, Any]], elements: bool) -> dict[str, dict[str, Any]]:
    return {**kinds, **({"element": ELEMENT} if elements else {})}


def _schema(properties: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": [*required], "additionalProperties": False}
