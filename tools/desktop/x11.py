"""X display by libX11 and libXtst: mouse, keyboard, pixels, and liveness of the front program.

Uses no packages, because it runs in sandbox images with a plain Python. If the server dies, Xlib ends this process,
which the client reports as a lost screen.
"""

from __future__ import annotations

import ctypes as c
import select
import time
from collections.abc import Iterable

LIBRARIES = ("libX11.so.6", "libXtst.so.6")

_CLIENT_MESSAGE, _SUBSTRUCTURE_NOTIFY, _Z_PIXMAP = 33, 1 << 19, 2
_SHIFT_CODE_NAME = "Shift_L"


class _Image(c.Structure):
    """First fields of Xlib's XImage."""

    _fields_ = [(name, c.c_int) for name in ("width", "height", "xoffset", "format")] + [("data", c.c_void_p)]
    _fields_ += [(name, c.c_int) for name in ("byte_order", "unit", "bit_order", "pad", "depth", "bytes_per_line")]


class _ClientMessage(c.Structure):
    _fields_ = [("type", c.c_int), ("serial", c.c_ulong), ("send_event", c.c_int), ("display", c.c_void_p)]
    _fields_ += [("window", c.c_ulong), ("message_type", c.c_ulong), ("format", c.c_int), ("data", c.c_long * 5)]


class _Event(c.Union):
    _fields_ = [("message", _ClientMessage), ("pad", c.c_long * 24)]


_Handler = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p)


_pass_over = _Handler(lambda _display, _error: 0)  # a window closed between two calls


class Display:
    """Connection to a display.

    Attributes:
        size: width and height, pixels.

    Raises:
        OSError: the libraries are missing, or no server answers on the display.
    """

    def __init__(self, name: str) -> None:
        self._x, self._test = (c.CDLL(library) for library in LIBRARIES)
        self._declare()
        self._x.XSetErrorHandler(_pass_over)
        self._display = self._x.XOpenDisplay(name.encode())
        if not self._display:
            raise OSError(f"no X server answers on display {name}")
        self._root = self._x.XDefaultRootWindow(self._display)
        self._x.XSelectInput(self._display, self._root, _SUBSTRUCTURE_NOTIFY)
        screen = self._x.XDefaultScreen(self._display)
        self.size = self._x.XDisplayWidth(self._display, screen), self._x.XDisplayHeight(self._display, screen)
        self._stamp = 0
        self._read_keyboard()

    def _declare(self) -> None:
        """Declares result and argument types; undeclared ints are C ints."""
        x, pointer, word = self._x, c.c_void_p, c.c_ulong
        types = {
            "XOpenDisplay": (pointer, [c.c_char_p]),
            "XCloseDisplay": (c.c_int, [pointer]),
            "XDefaultRootWindow": (word, [pointer]),
            "XDefaultScreen": (c.c_int, [pointer]),
            "XDisplayWidth": (c.c_int, [pointer, c.c_int]),
            "XDisplayHeight": (c.c_int, [pointer, c.c_int]),
            "XConnectionNumber": (c.c_int, [pointer]),
            "XSelectInput": (c.c_int, [pointer, word, c.c_long]),
            "XSync": (c.c_int, [pointer, c.c_int]),
            "XInternAtom": (word, [pointer, c.c_char_p, c.c_int]),
            "XStringToKeysym": (word, [c.c_char_p]),
            "XkbKeycodeToKeysym": (word, [pointer, c.c_ubyte, c.c_uint, c.c_uint]),
            "XDisplayKeycodes": (c.c_int, [pointer, pointer, pointer]),
            "XChangeKeyboardMapping": (c.c_int, [pointer, c.c_int, c.c_int, pointer, c.c_int]),
            "XGetImage": (c.POINTER(_Image), [pointer, word, c.c_int, c.c_int, c.c_uint, c.c_uint, word, c.c_int]),
            "XDestroyImage": (c.c_int, [pointer]),
            "XGetWindowProperty": (
                c.c_int, [pointer, word, word, c.c_long, c.c_long, c.c_int, word, *[pointer] * 5],
            ),
            "XFree": (c.c_int, [pointer]),
            "XSendEvent": (c.c_int, [pointer, word, c.c_int, c.c_long, pointer]),
            "XNextEvent": (c.c_int, [pointer, pointer]),
            "XPending": (c.c_int, [pointer]),
            "XSetErrorHandler": (pointer, [_Handler]),
        }  # fmt: skip
        for name, (result, arguments) in types.items():
            function = getattr(x, name)
            function.restype, function.argtypes = result, arguments
        self._test.XTestFakeKeyEvent.argtypes = [pointer, c.c_uint, c.c_int, word]
        self._test.XTestFakeButtonEvent.argtypes = [pointer, c.c_uint, c.c_int, word]
        self._test.XTestFakeMotionEvent.argtypes = [pointer, c.c_int, c.c_int, c.c_int, word]

    def close(self) -> None:
        """Disconnects. The server resets if this was its last client."""
        self._x.XCloseDisplay(self._display)

    def sync(self) -> None:
        """Waits until the server has processed all requests."""
        self._x.XSync(self._display, 0)

    # Mouse

    def move(self, x: float, y: float) -> None:
        """Moves the pointer to a pixel."""
        self._test.XTestFakeMotionEvent(self._display, -1, int(x), int(y), 0)
        self.sync()

    def button(self, number: int, down: bool) -> None:
        """Presses or releases a button with the next `sync`: 1 left, 2 middle, 3 right, 4 to 7 the wheel up, down,
        left, right. Clicks sent together are a double click even on a busy machine."""
        self._test.XTestFakeButtonEvent(self._display, number, int(down), 0)

    # Keyboard

    def _read_keyboard(self) -> None:
        """Reads the key and level of each symbol, and the free keys."""
        low, high = c.c_int(), c.c_int()
        self._x.XDisplayKeycodes(self._display, c.byref(low), c.byref(high))
        self._keys: dict[int, tuple[int, bool]] = {}  # key, and True if it needs Shift, by symbol
        self._spare: list[int] = []
        for code in range(low.value, high.value + 1):
            plain, shifted = (self._x.XkbKeycodeToKeysym(self._display, code, 0, level) for level in (0, 1))
            if not plain and not shifted:
                self._spare.append(code)
            for symbol, shift in ((plain, False), (shifted, True)):
                if symbol and (symbol not in self._keys or (self._keys[symbol][1] and not shift)):
                    self._keys[symbol] = code, shift

    def symbol(self, name: str) -> int:
        """Returns the symbol of a key name (`Return`, `Control_L`, `a`); 0 if unknown."""
        found: int = self._x.XStringToKeysym(name.encode("utf-8", "replace"))
        return found or (symbol_of(name) if len(name) == 1 else 0)

    def learn(self, symbols: Iterable[int]) -> None:
        """Maps symbols without a key to free keys; the oldest mappings are replaced if none is free."""
        for symbol in symbols:
            if symbol not in self._keys:
                code = self._spare.pop(0)
                self._spare.append(code)
                for old in [each for each, (at, _) in self._keys.items() if at == code]:
                    del self._keys[old]
                self._x.XChangeKeyboardMapping(self._display, code, 2, (c.c_ulong * 2)(symbol, symbol), 1)
                self._keys[symbol] = code, False
        self.sync()

    @property
    def room(self) -> int:
        """Number of new symbols that can be mapped before the first is replaced."""
        return len(self._spare)

    def knows(self, symbol: int) -> bool:
        """Returns True if a key has the symbol."""
        return symbol in self._keys

    def key(self, symbol: int, down: bool) -> bool:
        """Presses or releases the key of a symbol. Returns True if the symbol needs Shift."""
        code, shift = self._keys[symbol]
        self._test.XTestFakeKeyEvent(self._display, code, int(down), 0)
        return shift

    def stroke(self, symbol: int) -> None:
        """Presses and releases a key, with Shift if the symbol needs it."""
        shift = self._keys[symbol][1]
        held = self.symbol(_SHIFT_CODE_NAME)
        if shift:
            self.key(held, True)
        self.key(symbol, True)
        self.key(symbol, False)
        if shift:
            self.key(held, False)

    # Pixels

    def pixels(self) -> bytes:
        """Returns the screen without the pointer: 4 bytes per pixel (blue, green, red, unused), without padding."""
        width, height = self.size
        image = self._x.XGetImage(self._display, self._root, 0, 0, width, height, c.c_ulong(-1).value, _Z_PIXMAP)
        if not image:
            raise OSError("the X server gave no image")
        try:
            return c.string_at(image.contents.data, image.contents.bytes_per_line * height)
        finally:
            self._x.XDestroyImage(image)

    # Windows

    def _atom(self, name: str) -> int:
        atom: int = self._x.XInternAtom(self._display, name.encode(), 0)
        return atom

    def _property(self, window: int, name: str) -> list[int]:
        """Returns the 32-bit values of a property."""
        kind, form, count, left = c.c_ulong(), c.c_int(), c.c_ulong(), c.c_ulong()
        data = c.c_void_p()
        self._x.XGetWindowProperty(
            self._display, window, self._atom(name), 0, 1024, 0, 0,
            c.byref(kind), c.byref(form), c.byref(count), c.byref(left), c.byref(data),
        )  # fmt: skip
        if not data:
            return []
        try:
            return list(c.cast(data, c.POINTER(c.c_ulong))[: count.value]) if form.value == 32 else []
        finally:
            self._x.XFree(data)

    def windows(self) -> list[int]:
        """Returns the window manager's list of client windows."""
        return self._property(self._root, "_NET_CLIENT_LIST")

    def managed(self) -> bool:
        """Returns True if a window manager runs."""
        return bool(self._property(self._root, "_NET_SUPPORTING_WM_CHECK"))

    def active(self) -> int:
        """Returns the window with the keyboard focus; 0 if none."""
        return next(iter(self._property(self._root, "_NET_ACTIVE_WINDOW")), 0)

    def dialog(self) -> bool:
        """Returns True if the window with the keyboard focus is transient for another one."""
        front = self.active()
        return bool(front and self._property(front, "WM_TRANSIENT_FOR"))

    def answers(self, window: int, limit_s: float) -> bool:
        """Returns True once a window's program has processed all earlier events; False after `limit_s`.

        Uses _NET_WM_PING. Windows without support for it count as answering.
        """
        ping, protocols = self._atom("_NET_WM_PING"), self._atom("WM_PROTOCOLS")
        if not window or ping not in self._property(window, "WM_PROTOCOLS"):
            return True
        self._stamp += 1
        event = _Event()
        event.message = _ClientMessage(
            _CLIENT_MESSAGE, 0, 1, self._display, window, protocols, 32, (c.c_long * 5)(ping, self._stamp, window, 0, 0)
        )
        self._x.XSendEvent(self._display, window, 0, 0, c.byref(event))
        end = time.monotonic() + limit_s
        while (left := end - time.monotonic()) > 0:
            while self._x.XPending(self._display):
                self._x.XNextEvent(self._display, c.byref(event))
                message = event.message
                reply = message.type == _CLIENT_MESSAGE and message.message_type == protocols
                if reply and [*message.data[:2]] == [ping, self._stamp]:
                    return True
            select.select([self._x.XConnectionNumber(self._display)], [], [], min(left, 0.1))
            if window not in self.windows():  # it was closed
                return True
        return False


def symbol_of(character: str) -> int:
    """Returns the symbol of a character: its code for Latin-1, the key of control characters, else Unicode's symbol."""
    code = ord(character)
    if character in "\n\r":
        return 0xFF0D
    if character == "\t":
        return 0xFF09
    if 0x20 <= code <= 0x7E or 0xA0 <= code <= 0xFF:
        return code
    return 0x01000000 + code
