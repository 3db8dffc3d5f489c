"""Desktop for one program at a time: a headless X server, a window manager, the program, mouse and keyboard.

    python3 driver.py        requests on stdin, one line of JSON each; answers on stdout

A request is `{"do": NAME, ...}`. An answer is `{"ok": true, ..., "size": N}` and N bytes after the line, or
`{"ok": false, "kind": KIND, "error": TEXT}`: `missing` (a program or library is not installed), `input` (the request
is invalid), `lost` (the desktop is broken). The driver and all its processes end when stdin is closed.
"""

import contextlib
import json
import os
import secrets
import shutil
import struct
import subprocess
import sys
import time
import zlib

import processes
from keys import symbols_of
from x11 import LIBRARIES, Display, symbol_of

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

    def __init__(self):
        self._display = self._server = self._program = None
        self._still_s = 0.0

    # Life

    @property
    def bare(self):
        """True if the desktop is not started."""
        return self._display is None

    def start(self, width, height, command, folder, cwd, elements, wait_s):
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
            self._program = self._spawn(command[0], command, cwd)
            self._until(lambda: self._display.windows() or self._program.poll() is not None, wait_s, command[0])
            if self._program.poll() is not None and not self._display.windows():
                raise Refused("lost", f"{command[0]} ended with {self._program.returncode} at once: {self._told()}")
        self.settle(wait_s)
        return {}

    def reset(self):
        """Ends everything except the server, which resets when its last client disconnects."""
        self._display.close()
        self._display = self._program = None
        processes.end_all({self._server.pid})
        for name in filter("server".__ne__, os.listdir(self._folder)):
            path = f"{self._folder}/{name}"
            (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
        return {}

    def _start_server(self, width, height):
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

    def _connected(self):
        """Connects, unless the server still has state of the last episode: it resets after its last client."""
        display = Display(self._name)
        if display.managed():
            display.close()
            return False
        self._display = display
        return True

    def _start_manager(self, parts_s):
        """Starts the window manager and waits until it manages windows: it announces itself earlier, and windows shown
        in between are never managed."""
        ready = f"{self._folder}/openbox.ready"
        config = self._write("openbox.xml", _OPENBOX)
        self._spawn("openbox", ["openbox", "--config-file", config, "--startup", f"touch {ready}"])
        self._until(lambda: os.path.exists(ready), parts_s, "openbox")

    def _key(self):
        """Writes a key file for the server, valid for any display name; the server reads it again on reset."""
        entry = struct.pack(">HHH", 0xFFFF, 0, 0)
        for part in (b"MIT-MAGIC-COOKIE-1", secrets.token_bytes(16)):
            entry += struct.pack(">H", len(part)) + part
        os.environ["XAUTHORITY"] = path = f"{self._folder}/server/key"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(entry)
        return path

    def _environment(self):
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

    def _start_bus(self, parts_s):
        """Starts the message bus of the accessibility tree."""
        if not os.path.exists(_A11Y):
            raise Refused("missing", "at-spi2-core")
        shutil.copy(_A11Y, f"{self._folder}/services")
        config = self._write("bus.conf", _BUS.format(folder=self._folder))
        self._spawn("dbus-daemon", ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"])
        self._env["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={self._folder}/bus"
        self._until(lambda: os.path.exists(f"{self._folder}/bus"), parts_s, "dbus-daemon")
        self.elements(10)  # starts the registry: programs that start it themselves sometimes hang

    def _spawn(self, name, argv, cwd=None, **more):
        try:
            return processes.start(
                argv, f"{self._folder}/server/log", getattr(self, "_env", None), cwd or self._folder, **more
            )
        except FileNotFoundError:
            if cwd and not os.path.isdir(cwd):
                raise Refused("input", f"there is no folder {cwd}") from None
            raise Refused("missing", name) from None
        except OSError as error:
            raise Refused("lost", f"{name} cannot be started: {error}") from None

    def _until(self, ready, limit_s, what):
        end = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > end:
                raise Refused("lost", f"{what} showed nothing within {limit_s:g} s: {self._told()}")
            time.sleep(PAUSE_S)

    def _write(self, name, text):
        path = f"{self._folder}/{name}"
        with open(path, "w") as file:
            file.write(text)
        return path

    def _told(self):
        """Returns the end of the programs' output."""
        with open(f"{self._folder}/server/log", "rb") as log:
            return " ".join(log.read()[-400:].decode("utf-8", "replace").split()) or "they wrote nothing"

    # Mouse

    def move(self, x, y):
        """Moves the pointer."""
        self._display.move(x, y)
        return {}

    def click(self, x, y, button="left", times=1):
        """Clicks `times` times at a pixel."""
        self._acts()
        self._display.move(x, y)
        for _ in range(times):
            self._display.button(BUTTONS[button], True)
            self._display.button(BUTTONS[button], False)
        self._display.sync()
        return {}

    def drag(self, x, y, to_x, to_y):
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
        return {}

    # Keyboard

    def type(self, text):
        """Types a text. Characters without a key are mapped to a free one first."""
        display, rest = self._display, text.replace("\r\n", "\n")
        self._acts(pressed="\n" in rest)
        while rest:
            batch, new = len(rest), dict.fromkeys(())
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
        return {}

    def press(self, keys):
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
        return {}

    def _acts(self, pressed=True):
        """Sets how long the screen must be still after this action."""
        still_s = DIALOG_S if self._display.dialog() else PRESSED_S if pressed else 0.0
        self._still_s = max(self._still_s, still_s)

    # Observation

    def settle(self, limit_s):
        """Waits until the front program has processed its input and the screen is still.

        If a dialog opens or closes, it also waits for the new front window.

        Returns:
            answers: True if the program did; windows: number of windows; ended: exit code of the program.
        """
        end = time.monotonic() + limit_s
        front, answers, last, same, pause = None, True, None, 0, PAUSE_S
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
        return {"answers": answers, "windows": windows, "ended": self._ended()}

    def _ended(self):
        """Returns the exit code of the program, negative for a signal; None while it runs."""
        return self._program.poll() if self._program else None

    def screenshot(self):
        """Returns the screen as PNG bytes."""
        width, height = self._display.size
        return {}, png(self._display.pixels(), width, height)

    def elements(self, limit_s):
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

    def _listed(self, limit_s):
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


def png(pixels, width, height):
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


def answer(desktop, line):
    """Runs one request; returns the answer: a dict and the bytes after it."""
    try:
        request = json.loads(line)
        if request["do"] != "start" and desktop.bare:
            raise Refused("lost", "the desktop was not started")
        made = getattr(desktop, request.pop("do"))(**request)
    except Refused as refusal:
        return {"ok": False, "kind": refusal.args[0], "error": refusal.args[1]}, b""
    except OSError as error:
        missing = any(library in str(error) for library in LIBRARIES)
        return {"ok": False, "kind": "missing" if missing else "lost", "error": str(error)}, b""
    said, body = made if isinstance(made, tuple) else (made, b"")
    return {"ok": True, **said}, body


def main():
    """Answers requests until stdin is closed."""
    processes.adopt_orphans()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    desktop = Desktop()
    try:
        for line in sys.stdin.buffer:
            said, body = answer(desktop, line)
            out.write(json.dumps({**said, "size": len(body)}).encode() + b"\n" + body)
            out.flush()
    finally:
        processes.end_all()
        with contextlib.suppress(AttributeError):
            shutil.rmtree(desktop._folder, ignore_errors=True)


if __name__ == "__main__":
    main()
