"""The table of families: what solves a page, which pages do not start in place, which are not solved, and why."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.types.task import Message

HERE = Path(__file__).parent
View = load_object("./oracle/view.py:View", HERE)
text_of = load_object("./oracle/view.py:text_of", HERE)


@dataclass(frozen=True)
class Family:
    """A page.

    Attributes:
        solver: `file.function` in `oracle/`; empty: no script solves it.
        why: it has no solver.
        in_place: whether an episode that starts without loading the page again is exactly one that loads it.
    """

    name: str
    solver: str = ""
    why: str = ""
    in_place: bool = True

    def play(self, messages: list[Message], rng: random.Random) -> Generator[Say, list[Message], None]:
        """The solver as a script: its calls are turns, and it sees what follows them."""
        file, function = self.solver.split(".")
        solve: Callable[[Any], Generator[Any, None, None]] = load_object(f"./oracle/{file}.py:{function}", HERE)
        view = View(text_of(messages[-1]), rng)
        for calls in solve(view):
            seen = yield Say(calls=calls if isinstance(calls, list) else [calls])
            view.turn.clear()
            for message in seen:
                view.read(text_of(message))


SOLVED = {
    "clicks.only_button": "click-test",
    "clicks.button_one": "click-test-2 click-test-transfer",
    "clicks.quoted_button": "click-button unicode-test",
    "clicks.buttons_in_order": "click-button-sequence",
    "clicks.colour": "click-color",
    "clicks.dialog_close": "click-dialog",
    "clicks.dialog_button": "click-dialog-2",
    "clicks.link": "click-link",
    "clicks.widget": "click-widget",
    "clicks.focus": "focus-text",
    "clicks.focus_nth": "focus-text-2",
    "clicks.option": "click-option",
    "clicks.checkboxes": "click-checkboxes click-checkboxes-large click-checkboxes-transfer",
    "clicks.similar_checkboxes": "click-checkboxes-soft",
    "clicks.tab": "click-tab",
    "clicks.tab_with_link": "click-tab-2 click-tab-2-easy click-tab-2-medium click-tab-2-hard",
    "clicks.collapsible": "click-collapsible click-collapsible-nodelay",
    "clicks.sections_with_link": "click-collapsible-2 click-collapsible-2-nodelay",
    "clicks.menu": "click-menu",
    "clicks.grid_coordinate": "grid-coordinate",
    "clicks.shape": "click-shape",
    "clicks.count_shape": "count-shape",
    "clicks.identify_shape": "identify-shape",
    "clicks.shades": "click-shades",
    "clicks.ascending": "ascending-numbers",
    "clicks.greatest": "find-greatest",
    "clicks.odd_or_even": "odd-or-even",
    "clicks.tree": "navigate-tree",
    "texts.enter_quoted": "enter-text enter-text-dynamic",
    "texts.enter_case": "enter-text-2",
    "texts.enter_password": "enter-password",
    "texts.login": "login-user",
    "texts.login_popup": "login-user-popup",
    "texts.enter_date": "enter-date",
    "texts.enter_time": "enter-time",
    "texts.nth_word": "find-word",
    "texts.last_word": "scroll-text",
    "texts.read_table": "read-table",
    "texts.read_table_twice": "read-table-2",
    "texts.algebra": "simple-algebra",
    "texts.arithmetic": "simple-arithmetic",
    "texts.visual_addition": "visual-addition",
    "texts.captcha": "text-transform",
    "texts.guess": "guess-number",
    "texts.generate": "generate-number",
    "texts.autocomplete": "use-autocomplete use-autocomplete-nodelay",
    "texts.movies": "multi-layouts multi-orderings",
    "texts.scroll_to": "scroll-text-2",
    "texts.agreement": "sign-agreement",
    "texts.terminal": "terminal",
    "forms.choose_list": "choose-list",
    "forms.choose_several": "click-scroll-list",
    "forms.choose_date": "choose-date choose-date-easy choose-date-medium choose-date-nodelay",
    "forms.slider": "use-slider",
    "forms.sliders": "use-slider-2",
    "forms.slider_and_box": "form-sequence",
    "forms.radio_and_text": "form-sequence-2",
    "forms.drop_down_and_button": "form-sequence-3",
    "forms.spinner": "use-spinner",
    "forms.ticket": "buy-ticket",
    "forms.number_boxes": "number-checkboxes",
    "drags.box_into_box": "drag-box",
    "drags.one_way": "drag-circle drag-single-shape",
    "drags.shapes_into_box": "drag-shapes",
    "drags.list_item": "drag-items",
    "drags.sort_list": "drag-sort-numbers",
    "drags.grid_item": "drag-items-grid",
    "drags.draw_line": "draw-line",
    "drags.resize": "resize-textarea",
    "mail.inbox": "email-inbox-delete email-inbox-important email-inbox-reply email-inbox-star-reply",
    "mail.forward": "email-inbox-forward-nl",
    "mail.search": "search-engine",
    "mail.phone_book": "phone-book",
    "mail.social_several": "social-media-all social-media-some",
    "mail.food": "order-food",
    "mail.social": "social-media",
    "texts.copy": "copy-paste",
    "texts.copy_nth": "copy-paste-2",
    "texts.highlight": "highlight-text",
    "texts.highlight_nth": "highlight-text-2",
}
"""Solver: the pages that it solves."""

UNSOLVED = {
    "what is drawn on a canvas is not in the DOM": "count-sides",
    "its reward is graded, and whole pixels do not reach 1": "bisect-angle chase-circle circle-center find-midpoint "
    "hot-cold right-angle use-colorwheel use-colorwheel-2",
    "it depends on the luck of the opponent": "tic-tac-toe",
    "its reward depends on the clock of a busy machine": "button-delay simon-says",
    "it never ends by itself": "hover-shape",
    "two mails may be of one sender, and the page wants one of them": "email-inbox email-inbox-forward "
    "email-inbox-noscroll",
    "the script that was written misses some seeds": "draw-circle text-editor",
    "the item that is selected at the start takes no click": "click-pie click-pie-nodelay",
    "the instruction may name an icon, which is not in its text": "click-menu-2",
    "not written yet": "book-flight book-flight-nodelay daily-calendar drag-cube drag-shapes-2 "
    "email-inbox-forward-nl-turk email-inbox-nl-turk moving-items stock-market",
}
"""Reason: the pages that no script solves."""

RELOADED = frozenset({
    "book-flight", "book-flight-nodelay", "click-pie", "drag-cube", "drag-items", "drag-items-grid",
    "drag-sort-numbers", "form-sequence", "moving-items", "stock-market", "terminal", "use-autocomplete",
    "use-autocomplete-nodelay", "use-slider", "use-slider-2",
})  # fmt: skip
"""Pages that are loaded again for every episode: in place, something of the episode before stays."""

FAMILIES = {
    name: Family(name, solver, why, name not in RELOADED)
    for name, solver, why in sorted(
        [(name, solver, "") for solver, names in SOLVED.items() for name in names.split()]
        + [(name, "", why) for why, names in UNSOLVED.items() for name in names.split()]
    )
}
