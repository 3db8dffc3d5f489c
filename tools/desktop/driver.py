"""Desktop for one program at a time: a headless X server, a window manager, the program, mouse and keyboard.

    python3 driver.py        requests on stdin, answers on stdout, in frames (`../shared/frames.py`)

A request is `{"do": NAME, ...}`. An answer is `{"ok": true, ...}`, with a body, or `{"ok": false, "kind": KIND,
"error": TEXT}`: `missing` (a program or library is not installed), `input` (the request is invalid), `lost` (the
desktop is broken). The driver and all its processes end when stdin is closed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import struct
import subprocess
import sys
import time
import zlib

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "shared"))

import lifeline
from frames import claimed_stdout, frame, next_frame
from keys import symbols_of
from x11 import LIBRARIES, Display, symbol_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answer = tuple[dict[str, Any], bytes]
    """Message and body."""

BUTTONS = {"left": 1, "middle": 2, "right": 3, "up": 4, "down": 5, "wheel_left": 6, "wheel_right": 7}
PARTS_S = 10
"""Timeout for the start of each of server, window manager and bus, unless that of the program is longer."""
PAUSE_S = 0.02
"""Pause between two reads of the screen, and between the steps of a drag."""
QUIET = 3
"""Equal reads in a row for the screen to count as still."""
PRESSED_S = 0.3
"""Seconds of an unchanged screen after clicks and keys: GTK shows a button activated by key as pressed for 250 ms
before it acts (`ACTIVATE_TIMEOUT` in gtkbutton.c)."""
DIALOG_S = 0.7
"""Seconds of an unchanged screen after actions that open or use a dialog: GTK takes half a second to validate a file
name and enable the save button."""

_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><cachedir>{folder}/fonts</cachedir></fontconfig>
"""
# Two actions are never a double click: the screen is still for longer between them (PRESSED_S).
_GTK = """[Settings]
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-double-click-time=250
gtk-recent-files-enabled=false
gtk-theme-name=Adwaita
gtk-font-name=DejaVu Sans 10
"""
# No menus and no key bindings: everything on the screen belongs to the program.
_OPENBOX = """<?xml version="1.0"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
<focus><focusNew>yes</focusNew><focusLast>yes</focusLast></focus>
<placement><policy>Smart</policy><center>yes</center></placement>
<desktops><number>1</number></desktops>
<keyboard><keybind key="A-F4"><action name="Close"/></keybind></keyboard>
<mouse><dragThreshold>1</dragThreshold>
<context name="Client Titlebar">
<mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind></context>
<context name="Titlebar"><mousebind button="Left" action="Drag"><action name="Move"/></mousebind></context>
<context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
<context name="Maximize"><mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind></context>
</mouse></openbox_config>
"""
_BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={folder}/bus</listen><auth>EXTERNAL</auth>
<servicedir>{folder}/services</servicedir>
<policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>
"""
_A11Y = "/usr/share/dbus-1/services/org.a11y.Bus.service"


class Refused(Exception):
    """A request failed; the first argument is the kind."""


class Desktop:
    """Desktop. `do` names its public methods."""

    def __init__(self) -> None:
        self._connection: Display | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._elements = False
        self._env: dict[str, str] | None = None
        self._still_s = 0.0

    # Life

    @property
    def bare(self) -> bool:
        """True if the desktop is not started."""
        return self._connection is None

    @property
    def _display(self) -> Display:
        assert self._connection is not None  # `answer` refuses other requests before `start`
        return self._connection

    def start(
        self, width: int, height: int, command: list[str] | None, folder: str, cwd: str, elements: bool, wait_s: float
    ) -> Answer:
        """Starts the server if needed, then the window manager and the program, and waits for its window.

        Args:
            command: program and arguments, a list; None: a bare screen.
            folder: folder of the driver's files, created anew.
            cwd: working folder of the program.
            elements: enables reading the accessibility tree.
        """
        self._folder, self._elements = folder, elements
        if self._server is None:
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(f"{folder}/server", mode=0o700)
            self._start_server(width, height)
        for name in ("home/.config/gtk-3.0", "run", "services"):
            os.makedirs(f"{folder}/{name}", mode=0o700)
        parts_s = max(PARTS_S, wait_s)
        self._until(self._connected, parts_s, "Xvfb")
        self._env = self._environment()
        self._start_manager(parts_s)
        if elements:
            self._start_bus(parts_s)
        if command:
            program = self._program = self._spawn(command[0], command, cwd)
            self._until(lambda: self._display.windows() or program.poll() is not None, wait_s, command[0])
            if program.poll() is not None and not self._display.windows():
                raise Refused("lost", f"{command[0]} ended with {program.returncode} at once: {self._told()}")
        self.settle(wait_s)
        return {}, b""

    def reset(self) -> Answer:
        """Ends everything except the server, which resets when its last client disconnects."""
        self._display.close()
        self._connection = self._program = None
        lifeline.end_descendants([self._server.pid] if self._server else [])
        for name in filter("server".__ne__, os.listdir(self._folder)):
            path = f"{self._folder}/{name}"
            (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
        return {}, b""

    def _start_server(self, width: int, height: int) -> None:
        os.makedirs("/tmp/.X11-unix", mode=0o1777, exist_ok=True)
        read, write = os.pipe()
        screen = f"{width}x{height}x24"
        argv = ["Xvfb", "-displayfd", str(write), "-screen", "0", screen, "-nolisten", "tcp", "-auth", self._key()]
        self._server = self._spawn("Xvfb", argv, pass_fds=(write,))
        os.close(write)
        with os.fdopen(read) as number:
            self._name = f":{number.read().strip()}"  # empty if the server exits
        if self._name == ":":
            raise Refused("lost", f"Xvfb {screen} did not start: {self._told()}")

    def _connected(self) -> bool:
        """Connects, unless the server still has state of the last episode: it resets after its last client."""
        display = Display(self._name)
        if display.managed():
            display.close()
            return False
        self._connection = display
        return True

    def _start_manager(self, parts_s: float) -> None:
        """Starts the window manager and waits until it manages windows: it announces itself earlier, and windows shown
        in between are never managed."""
        ready = f"{self._folder}/openbox.ready"
        config = self._write("openbox.xml", _OPENBOX)
        self._spawn("openbox", ["openbox", "--config-file", config, "--startup", f"touch {ready}"])
        self._until(lambda: os.path.exists(ready), parts_s, "openbox")

    def _key(self) -> str:
        """Writes a key file for the server, valid for any display name; the server reads it again on reset."""
        entry = struct.pack(">HHH", 0xFFFF, 0, 0)
        for part in (b"MIT-MAGIC-COOKIE-1", secrets.token_bytes(16)):
            entry += struct.pack(">H", len(part)) + part
        os.environ["XAUTHORITY"] = path = f"{self._folder}/server/key"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(entry)
        return path

    def _environment(self) -> dict[str, str]:
        """Returns an environment with a separate home, without animations, with settings only in memory."""
        folder = self._folder
        self._write("home/.config/gtk-3.0/settings.ini", _GTK)
        env = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
        env.setdefault("LANG", "C.UTF-8")
        return env | {
            "DISPLAY": self._name,
            "XAUTHORITY": os.environ["XAUTHORITY"],
            "HOME": f"{folder}/home",
            "XDG_CONFIG_HOME": f"{folder}/home/.config",
            "XDG_RUNTIME_DIR": f"{folder}/run",
            "FONTCONFIG_FILE": self._write("fonts.conf", _FONTS.format(folder=folder)),
            "GDK_BACKEND": "x11",
            "GSETTINGS_BACKEND": "memory",
            "GIO_USE_VFS": "local",
            "NO_AT_BRIDGE": "0" if self._elements else "1",
        }

    def _start_bus(self, parts_s: float) -> None:
        """Starts the message bus of the accessibility tree."""
        if not os.path.exists(_A11Y):
            raise Refused("missing", "at-spi2-core")
        shutil.copy(_A11Y, f"{self._folder}/services")
        config = self._write("bus.conf", _BUS.format(folder=self._folder))
        self._spawn("dbus-daemon", ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"])
        self._env = {**(self._env or {}), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self._folder}/bus"}
        self._until(lambda: os.path.exists(f"{self._folder}/bus"), parts_s, "dbus-daemon")
        self.elements(10)  # starts the registry: programs that start it themselves sometimes hang

    def _spawn(
        self, name: str, argv: list[str], cwd: str | None = None, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        try:
            return lifeline.start(argv, f"{self._folder}/server/log", self._env, cwd or self._folder, pass_fds)
        except FileNotFoundError:
            if cwd and not os.path.isdir(cwd):
                raise Refused("input", f"there is no folder {cwd}") from None
            raise Refused("missing", name) from None
        except OSError as error:
            raise Refused("lost", f"{name} cannot be started: {error}") from None

    def _until(self, ready: Callable[[], object], limit_s: float, what: str) -> None:
        end = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > end:
                raise Refused("lost", f"{what} showed nothing within {limit_s:g} s: {self._told()}")
            time.sleep(PAUSE_S)

    def _write(self, name: str, text: str) -> str:
        path = f"{self._folder}/{name}"
        with open(path, "w") as file:
            file.write(text)
        return path

    def _told(self) -> str:
        """Returns the end of the programs' output."""
        with open(f"{self._folder}/server/log", "rb") as log:
            return " ".join(log.read()[-400:].decode("utf-8", "replace").split()) or "they wrote nothing"

    # Mouse

    def move(self, x: float, y: float) -> Answer:
        """Moves the pointer."""
        self._display.move(x, y)
        return {}, b""

    def click(self, x: float, y: float, button: str = "left", times: int = 1) -> Answer:
        """Clicks `times` times at a pixel."""
        self._acts()
        self._display.move(x, y)
        for _ in range(times):
            self._display.button(BUTTONS[button], True)
            self._display.button(BUTTONS[button], False)
        self._display.sync()
        return {}, b""

    def drag(self, x: int, y: int, to_x: int, to_y: int) -> Answer:
        """Drags with the left button, in ten steps."""
        self._acts()
        self._display.move(x, y)
        self._display.button(1, True)
        self._display.sync()
        for step in range(1, 11):
            time.sleep(PAUSE_S)
            self._display.move(x + (to_x - x) * step // 10, y + (to_y - y) * step // 10)
        time.sleep(PAUSE_S)
        self._display.button(1, False)
        self._display.sync()
        return {}, b""

    # Keyboard

    def type(self, text: str) -> Answer:
        """Types a text. Characters without a key are mapped to a free one first."""
        display, rest = self._display, text.replace("\r\n", "\n")
        self._acts(pressed="\n" in rest)
        while rest:
            batch = len(rest)
            new: dict[int, None] = {}  # symbols without a key, in order
            for at, character in enumerate(rest):
                symbol = symbol_of(character)
                if not display.knows(symbol):
                    new[symbol] = None
                if len(new) > display.room - 1:
                    batch = at
                    break
            if new:
                display.learn(list(new)[: display.room - 1])
                self._display.answers(display.active(), 1.0)  # the program has read the new keys
            for at, character in enumerate(rest[:batch]):
                display.stroke(symbol_of(character))
                if at % 50 == 49:
                    display.sync()
            display.sync()
            if (rest := rest[batch:]) and new:
                self._display.answers(display.active(), 1.0)  # before keys are remapped
        return {}, b""

    def press(self, keys: list[str]) -> Answer:
        """Presses keys in order and releases them in reverse: `["ctrl", "s"]`."""
        self._acts()
        try:
            symbols = symbols_of(keys, self._display.symbol)
        except ValueError as error:
            raise Refused("input", str(error)) from None
        self._display.learn(symbols)
        shift = self._display.symbol("Shift_L")
        if len(symbols) == 1:  # a single symbol implies its Shift
            self._display.stroke(symbols[0])
        else:
            held = [symbol for symbol in symbols if symbol != shift or symbols.count(shift)]
            for symbol in held:
                self._display.key(symbol, True)
            for symbol in reversed(held):
                self._display.key(symbol, False)
        self._display.sync()
        return {}, b""

    def _acts(self, pressed: bool = True) -> None:
        """Sets how long the screen must be still after this action."""
        still_s = DIALOG_S if self._display.dialog() else PRESSED_S if pressed else 0.0
        self._still_s = max(self._still_s, still_s)

    # Observation

    def settle(self, limit_s: float) -> Answer:
        """Waits until the front program has processed its input and the screen is still.

        If a dialog opens or closes, it also waits for the new front window.

        Returns:
            answers: True if the program did; windows: number of windows; ended: exit code of the program.
        """
        end = time.monotonic() + limit_s
        front: int | None = None
        answers, last, same, pause = True, b"", 0, PAUSE_S
        still_s, self._still_s = self._still_s, 0.0
        since = time.monotonic()
        while time.monotonic() < end:
            if front != self._display.active():
                front = self._display.active()
                asked = time.monotonic()
                answers, same = self._display.answers(front, end - asked), 0
                pause = max(PAUSE_S, time.monotonic() - asked)  # on a busy machine drawing is as slow as answering
                if still_s and self._display.dialog():
                    still_s = DIALOG_S
            now = self._display.pixels()
            if now != last:
                last, same, since = now, 0, time.monotonic()
            same += 1
            if same >= QUIET and time.monotonic() - since >= still_s and front == self._display.active():
                break
            time.sleep(min(pause, max(end - time.monotonic(), 0)))
        windows = len(self._display.windows())
        return {"answers": answers, "windows": windows, "ended": self._ended()}, b""

    def _ended(self) -> int | None:
        """Returns the exit code of the program, negative for a signal; None while it runs."""
        return self._program.poll() if self._program else None

    def screenshot(self) -> Answer:
        """Returns the screen as PNG bytes."""
        width, height = self._display.size
        return {}, png(self._display.pixels(), width, height)

    def elements(self, limit_s: float) -> Answer:
        """Returns the programs' accessibility elements. Reads again if the screen changed meanwhile."""
        if not self._elements:
            raise Refused("input", "the desktop was started without elements")
        end = time.monotonic() + limit_s / 2
        while True:
            before, listed = self._display.pixels(), self._listed(limit_s)
            left = end - time.monotonic()
            if before == self._display.pixels() or left <= 0:
                return {}, listed
            self.settle(left)

    def _listed(self, limit_s: float) -> bytes:
        """Returns the output of `elements.py`, run with a timeout."""
        python = next(filter(os.path.exists, ("/usr/bin/python3",)), sys.executable)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "elements.py")
        argv = [python, "-B", script, str(limit_s)]
        try:
            ran = subprocess.run(argv, env=self._env, capture_output=True, timeout=limit_s + 2, check=False)
        except subprocess.TimeoutExpired:
            return b'{"elements": [], "whole": false}'
        if ran.returncode == 3:
            raise Refused("missing", "gir1.2-atspi-2.0")
        if ran.returncode:
            raise Refused("lost", f"the elements cannot be read: {ran.stderr[-300:].decode('utf-8', 'replace')}")
        return ran.stdout


def png(pixels: bytes, width: int, height: int) -> bytes:
    """Encodes rows of (blue, green, red, unused) as PNG. Fast rather than small."""
    rows = bytearray(3 * width * height)
    for channel in range(3):
        rows[channel::3] = pixels[2 - channel :: 4]
    stride = 3 * width
    raw = b"".join(b"\0" + rows[at : at + stride] for at in range(0, len(rows), stride))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(raw, 1)), (b"IEND", b""))
    )


def answer(desktop: Desktop, request: dict[str, Any]) -> Answer:
    """Runs one request and returns the answer."""
    try:
        if request["do"] != "start" and desktop.bare:
            raise Refused("lost", "the desktop was not started")
        fields, body = getattr(desktop, request.pop("do"))(**request)
    except Refused as refusal:
        return {"ok": False, "kind": refusal.args[0], "error": refusal.args[1]}, b""
    except OSError as error:
        missing = any(library in str(error) for library in LIBRARIES)
        return {"ok": False, "kind": "missing" if missing else "lost", "error": str(error)}, b""
    return {"ok": True, **fields}, body


def main() -> None:
    """Answers requests until stdin is closed."""
    lifeline.adopt_orphans()
    out, desktop = claimed_stdout(), Desktop()
    try:
        while (asked := next_frame(sys.stdin.buffer)) is not None:
            out.write(frame(*answer(desktop, asked[0])))
            out.flush()
    finally:
        lifeline.end_descendants()
        if desktop._folder:
            shutil.rmtree(desktop._folder, ignore_errors=True)


if __name__ == "__main__":
    main()
