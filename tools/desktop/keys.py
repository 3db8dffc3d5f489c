"""Key names of X (xdotool, Anthropic's computer tool), pyautogui and browsers."""

from __future__ import annotations

import difflib
from collections.abc import Callable

NAMES = {
    "ctrl": "Control_L", "control": "Control_L", "shift": "Shift_L", "alt": "Alt_L", "option": "Alt_L",
    "super": "Super_L", "win": "Super_L", "cmd": "Super_L", "command": "Super_L", "meta": "Super_L",
    "enter": "Return", "return": "Return", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": "space",
    "spacebar": "space", "backspace": "BackSpace", "back_space": "BackSpace", "delete": "Delete", "del": "Delete",
    "insert": "Insert", "ins": "Insert", "home": "Home", "end": "End",
    "pageup": "Page_Up", "page_up": "Page_Up", "pgup": "Page_Up", "prior": "Page_Up",
    "pagedown": "Page_Down", "page_down": "Page_Down", "pgdn": "Page_Down", "next": "Page_Down",
    "up": "Up", "down": "Down", "left": "Left", "right": "Right",
    "arrowup": "Up", "arrowdown": "Down", "arrowleft": "Left", "arrowright": "Right",
    "capslock": "Caps_Lock", "caps_lock": "Caps_Lock", "menu": "Menu", "printscreen": "Print", "print": "Print",
    **{f"f{number}": f"F{number}" for number in range(1, 13)},
}  # fmt: skip
"""X key names by lower-case name."""


def symbols_of(keys: list[str], symbol: Callable[[str], int]) -> list[int]:
    """Returns the symbols of keys.

    Args:
        symbol: returns the symbol of an X key name, or 0.

    Raises:
        ValueError: a key is unknown; the message names similar ones.
    """
    found = []
    for key in keys:
        name = key if len(key) == 1 else NAMES.get(key.lower(), key)
        code = symbol(name) if name else 0
        if not code:
            near = difflib.get_close_matches(key.lower(), NAMES, 3)
            hint = f"; did you mean {', '.join(near)}?" if near else "; keys are named ctrl, shift, alt, Return, F5, a"
            raise ValueError(f"there is no key {key!r}{hint}")
        found.append(code)
    return found
