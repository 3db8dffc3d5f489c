"""Python kernel with persistent variables.

Input on one descriptor: number, space, code, NUL. Output on the other: number, space, answer, NUL. The answer starts
with a letter: `n` nothing, `v` the repr of the last expression, `e` a traceback.
"""

from __future__ import annotations

import ast
import linecache
import os
import signal
import sys

LONGEST = 20_000  # characters of a repr or a traceback


def shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}\n[...]\n{text[-LONGEST // 2 :]}"


def run(source: str, name: str, names: dict[str, object]) -> str:
    """Runs a cell and returns the answer."""
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    try:
        tree = ast.parse(source, name)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, name, "exec", dont_inherit=True), names)  # not the future statements of this file
        if not isinstance(last, ast.Expr):
            return "n"
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)
        names["_"] = value
        return "n" if value is None else "v" + shorten(repr(value))
    except BaseException as error:
        import traceback

        told = traceback.TracebackException.from_exception(error)
        here = run.__code__.co_filename
        told.stack = traceback.StackSummary.from_list([frame for frame in told.stack if frame.filename != here])
        return "e" + shorten("".join(told.format()))


def main(requests: int, replies: int) -> None:
    os.set_inheritable(requests, False)
    os.set_inheritable(replies, False)
    sys.path[0] = ""
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    pending, cells, busy = b"", 0, False

    def interrupt(*_: object) -> None:
        if busy:  # else the cell has already finished
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    while True:
        while b"\0" not in pending:
            part = os.read(requests, 65536)
            if not part:
                return
            pending += part
        request, _, pending = pending.partition(b"\0")
        number, _, source = request.partition(b" ")
        cells += bool(source)
        try:
            busy = True
            answer = run(source.decode("utf-8", "replace"), f"<cell {cells}>", names)
            busy = False
        except KeyboardInterrupt:
            busy, answer = False, "eKeyboardInterrupt\n"
        data = number + b" " + answer.replace("\0", "\\0").encode("utf-8", "replace") + b"\0"
        while data:
            data = data[os.write(replies, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
