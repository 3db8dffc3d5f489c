"""The `gui` tool: screenshots, mouse and keyboard on a desktop program or a page of a browser."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from agentrl.tools.base import Environment, ToolResult, own
from agentrl.tools.builtin.gui.desktop import Desktop, DesktopSettings, must_have
from agentrl.tools.builtin.gui.page import PageScreen, PageSettings
from agentrl.tools.builtin.gui.scale import Scale, Unit
from agentrl.tools.builtin.gui.screen import Element, Point, Screen
from agentrl.tools.builtin.gui.styles import STYLES, WAIT_S
from agentrl.tools.builtin.gui.warm import WARM, Recycling
from agentrl.types.clocks.threads import in_thread
from agentrl.types.errors import RecipeError, TaskError, ToolError, nearest, needs
from agentrl.types.parts.image import image_info
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Message, Task

Shows = Literal["image", "elements", "both"]

LARGEST = 16_384
"""Maximum side of a screen, pixels."""
NOT_WHOLE = "(the list is not whole: the program did not answer in time)"
CHARACTERS, CHORDS = 2000, 50
"""Of one action. It would take too long otherwise, and nobody types so much."""
_CLICKS: dict[str, dict[str, Any]] = {
    "left_click": {},
    "double_click": {"times": 2},
    "triple_click": {"times": 3},
    "right_click": {"button": "right"},
    "middle_click": {"button": "middle"},
}


class Gui(Environment):
    """Desktop program or browser page, operated by the model with mouse and keyboard.

    Args:
        app: command of a program; `{name}` is a field of the task's data.
        page: instead of `app`, a page in Chromium on this machine: its address, in which `{name}` is a field of the
            task's data, or `{url, allow, flags, dialogs}` (docs/gui.md).
        actions: action space: `computer`, `computer_use`, `gui_r1` or `functions` (docs/gui.md).
        shows: observation after each action: `image`, a screenshot; `elements`, a list of the elements; or `both`.
        where: place of a program: the episode's `sandbox` (default), or this machine (`host`), if it is trusted.
        size: size of the screen, pixels.
        shown: size of the image shown to the model; default: size of the screen.
        coordinates: `pixels` of that image, `thousandths` (0 to 1000) or `fractions` (0 to 1).
        settle_s: maximum seconds to wait for the effect of an action before the observation.
        start_s: timeout of the program's first window, or of loading the page.
        recycle: `{age_s, episodes, step_s}`: limits after which a screen of the host is replaced (docs/gui.md).

    Attributes:
        folder: working folder of the program on the host; None in a sandbox, where it is the workdir.
    """

    actions: str = "computer"
    shows: Shows = "image"

    def __init__(
        self,
        app: str | None = None,
        page: str | Mapping[str, Any] | None = None,
        actions: str = "computer",
        shows: Shows = "image",
        where: Literal["sandbox", "host"] | None = None,
        size: Sequence[int] = (1024, 768),
        shown: Sequence[int] | None = None,
        coordinates: Unit = "pixels",
        settle_s: float = 2.0,
        start_s: float = 20.0,
        recycle: Mapping[str, float] | None = None,
    ) -> None:
        self.app, self.actions, self.shows, self.where = app, actions, shows, where or "sandbox"
        _one_of("actions", actions, STYLES)
        _one_of("shows", shows, ("image", "elements", "both"))
        _one_of("where", self.where, ("sandbox", "host"))
        _one_of("coordinates", coordinates, ("pixels", "thousandths", "fractions"))
        screen = _size("size", size)
        self._scale = Scale(screen, _size("shown", shown) if shown else screen, coordinates)
        self._settings = DesktopSettings(screen, shows != "image", settle_s, start_s)
        try:
            self._recycling = Recycling(**dict(recycle or {}))  # type: ignore[arg-type]
        except TypeError:
            raise RecipeError(f"gui: recycle is {recycle!r}", remedy="its keys: age_s, episodes, step_s") from None
        if (app is None) == (page is None):
            raise RecipeError("gui: give either app or page", remedy="app: mousepad {file}, or page: http://...")
        if page is not None and (where or recycle):
            raise RecipeError(f"gui: {'where' if where else 'recycle'} is for programs, and this is a page")
        self._page = PageSettings.of(page) if page is not None else None
        try:
            self._words = shlex.split(app or "")
        except ValueError as error:
            raise RecipeError(f"gui: app is {app!r}: {error}", remedy="close the quote") from None
        self.needs_sandbox = page is None and self.where == "sandbox"
        self.timeout_s = 90.0 + settle_s + WAIT_S
        self._start_s = start_s
        self.folder: str | None = None
        self._listed: list[Element] = []
        self._screen: Screen | None = None
        if app is not None and where == "host":
            must_have(self._settings.elements)
        if self._scale.shown != screen:
            with needs("vision"):
                import PIL  # noqa: F401

    def tools(self) -> Sequence[Any]:
        """Returns the tools of the action space `actions`."""
        return STYLES[self.actions](self._act, self._scale.words, self.shows != "image")

    # The episode

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Starts the program or opens the page."""
        self._pointer: Point = (0, 0)
        self._key = ""
        if self._page is not None:
            settings = self._page.model_copy(update={"url": self._filled(self._page.url, task)})
            size, settle_s = self._scale.screen, self._settings.settle_s
            self._screen = await PageScreen.open(settings, size, self._start_s, settle_s)
            return
        command = self.command(task)
        if self.where == "sandbox":
            inside = own(sandbox)
            desktop = await Desktop.open_in_sandbox(inside, self._settings)
            self._screen = desktop
            await desktop.start(command, inside.spec.workdir)
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="agentrl-gui-", ignore_cleanup_errors=True)
            self.folder = self._temporary.name
            self.prepare(task)
            self._screen = await WARM.take(self._settings, self._recycling, command, self.folder)

    def command(self, task: Task) -> list[str]:
        """Returns the program and its arguments, from `app`.

        Raises:
            TaskError: the task's data lacks the field.
        """
        return [self._filled(word, task) for word in self._words]

    def _filled(self, text: str, task: Task) -> str:
        """Fills the fields of the task's data into a text of `app` or `page`."""
        try:
            return text.format(**task.data)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            setting, given = ("app", self.app) if self.app is not None else ("page", text)
            remedy = f"{setting} is {given!r}; the task's data has {', '.join(task.data) or 'nothing'}"
            raise TaskError(f"no field for {setting}: {error}", place=f"task {task.id!r}", remedy=remedy) from None

    def prepare(self, task: Task) -> None:
        """Hook: writes the program's files into `folder`, on the host. In a sandbox, the task's `files` are used."""

    async def opening(self) -> Sequence[Message]:
        """Returns the initial screen."""
        text, images = await self._look()
        width, height = self._scale.shown
        parts: list[Any] = [f"The screen ({width} x {height}):{f'{chr(10)}{text}' if text else ''}"]
        return [{"role": "user", "content": [*parts, *({"type": "image", "image": image} for image in images)]}]

    async def close(self) -> None:
        """Ends the program or closes the page; a program's screen on the host may be reused."""
        screen, self._screen = self._screen, None
        try:
            if isinstance(screen, Desktop) and self.where == "host":
                await WARM.give_back(screen, self._recycling)
            elif screen is not None:
                await screen.close()
        finally:
            if self.folder is not None:
                self._temporary.cleanup()

    def state_key(self) -> str:
        """Hash of the last observation: equal screens are the same state."""
        return self._key

    # Actions

    async def _act(self, name: str, given: Mapping[str, Any]) -> ToolResult:
        """Performs one action and returns the new observation."""
        if name == "done":
            return ToolResult("", done=True, answer=given.get("text", ""))
        screen = self._on
        points = await self._do(screen, name, given)
        note = await screen.settle()
        text, images = await self._look()
        said = "\n".join(part for part in (note, text) if part)
        return ToolResult(said, images=images, points=[self._scale.in_image(point) for point in points])

    async def _do(self, screen: Screen, name: str, given: Mapping[str, Any]) -> list[Point]:
        """Performs the action. Returns its points in screen pixels."""
        at = self._point(given) if "coordinate" in given or "element" in given else self._pointer
        acted = [at]
        if name == "mouse_move":
            await screen.move(at)
        elif name in _CLICKS:
            await screen.click(at, **_CLICKS[name])
        elif name == "left_click_drag":
            start = self._scale.to_screen(given["start_coordinate"]) if "start_coordinate" in given else self._pointer
            await screen.drag(start, at)
            acted = [start, at]
        elif name == "scroll":
            await screen.scroll(at, given["scroll_direction"], given.get("scroll_amount", 3))
        else:
            await self._without_mouse(screen, name, given)
            return []
        self._pointer = at
        return acted

    async def _without_mouse(self, screen: Screen, name: str, given: Mapping[str, Any]) -> None:
        if name == "type":
            if len(given["text"]) > CHARACTERS:
                raise ToolError(f"type at most {CHARACTERS} characters at a time; these are {len(given['text'])}")
            await screen.type(given["text"])
        elif name == "key":
            chords = given["text"].split()  # several, one after another, as xdotool takes them
            if len(chords) > CHORDS:
                raise ToolError(f"press at most {CHORDS} keys at a time; these are {len(chords)}")
            for chord in chords:
                await screen.press(_keys(chord))
        elif name == "wait":
            await asyncio.sleep(min(given.get("duration", 1.0), WAIT_S))

    def _point(self, given: Mapping[str, Any]) -> Point:
        if "coordinate" in given:
            return self._scale.to_screen(given["coordinate"])
        number = given["element"]
        if not 1 <= number <= len(self._listed):
            raise ToolError(f"there is no element {number}; the last list ends at {len(self._listed)}")
        left, top, right, bottom = self._listed[number - 1].box
        middle, (width, height) = ((left + right) // 2, (top + bottom) // 2), self._scale.screen
        if not (0 <= middle[0] < width and 0 <= middle[1] < height):
            raise ToolError(f"element {number} is outside the screen")
        return middle

    async def _look(self) -> tuple[str, list[bytes]]:
        """Returns the observation: a text and images."""
        text, images = "", list[bytes]()
        if self.shows != "image":
            self._listed, whole = await self._on.elements()
            text = listing(self._listed, self._scale)
            text = text if whole else f"{text if self._listed else ''}\n{NOT_WHOLE}".strip()
        if self.shows != "elements":
            image = await self._on.screenshot()
            if self._scale.shown != self._scale.screen:  # in a thread: it takes a tenth of a second
                image = await in_thread(partial(_resized, image, self._scale))
            images = [image]
        self._key = hashlib.sha256(b"".join([text.encode(), *images])).hexdigest()[:16]
        return text, images

    @property
    def _on(self) -> Screen:
        assert self._screen is not None, "open() first"
        return self._screen


def listing(elements: Sequence[Element], scale: Scale) -> str:
    """Formats one line per element: number, role, name, states, box in the model's coordinates, text."""
    lines = []
    for number, each in enumerate(elements, 1):
        box = [*scale.to_model(each.box[:2]), *scale.to_model(each.box[2:])]
        words = [f"[{number}] {each.role}", *([f'"{each.name}"'] if each.name else []), *each.states, str(box)]
        written = f": {each.text!r}" if each.text and each.text != each.name else ""
        lines.append(" ".join(words) + written)
    return "\n".join(lines) or "(no element)"


def _keys(chord: str) -> list[str]:
    """Splits `ctrl+s` into keys; `+` alone or at the end is the plus key."""
    if chord.endswith("+"):
        return [*_keys(chord[:-1].removesuffix("+")), "+"] if len(chord) > 1 else ["+"]
    return chord.split("+")


def _resized(image: bytes, scale: Scale) -> bytes:
    """Resizes a screenshot to the size shown to the model.

    Raises:
        ToolError: the image is far larger than the screen: a program of the sandbox forged it.
    """
    import io

    from PIL import Image

    size, (width, height) = scale.shown, scale.screen
    if (found := image_info(image)).width * found.height > 4 * width * height:
        raise ToolError(f"the screenshot has {found.width} x {found.height} pixels, the screen {width} x {height}")
    out = io.BytesIO()
    with Image.open(io.BytesIO(image)) as picture:
        if picture.size != (found.width, found.height):
            raise ToolError(f"the screenshot says that it has {found.width} x {found.height} pixels, and has others")
        picture.convert("RGB").resize(size, Image.Resampling.BOX).save(out, "PNG", compress_level=1)
    return out.getvalue()


def _one_of(setting: str, value: Any, known: Mapping[str, Any] | Sequence[str] | Callable[..., Any]) -> None:
    if value not in known:  # type: ignore[operator]
        raise RecipeError(f"gui: {setting} is {value!r}", remedy=nearest(str(value), known))  # type: ignore[arg-type]


def _size(setting: str, given: Sequence[int]) -> tuple[int, int]:
    if len(given) != 2 or not all(isinstance(side, int) and 1 <= side <= LARGEST for side in given):
        raise RecipeError(
            f"gui: {setting} is {given!r}", remedy=f"give [width, height] in pixels, each from 1 to {LARGEST}"
        )
    return given[0], given[1]
