"""Programs of verifiers: detection of a missing one, of the agent's duty to provide it, and of local absence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from agentrl.types.sandbox import SandboxSpec

NOT_STARTED = (126, 127)
"""Exit codes of shells for a program that cannot be run or does not exist."""

_SAID = re.compile(
    r"^(?:.*: )?(?:line )?(?:\d+: )?[‘'`\"]?([\w./+-]+)[’'\"]?: "
    r"(?:command not found|not found|No such file or directory|Permission denied|cannot execute.*)$",
    re.MULTILINE,
)
_WORD = re.compile(r"^\s*(?:(?:then|else|do|!|sudo|exec|time)\s+)*(?:\w+=\S*\s+)*([A-Za-z][\w.-]*)(?=\s|$|;)")
_HERE = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_SHELL = frozenset(
    re.findall(
        r"\S+",
        """
    alias bg bind break builtin caller case cd command compgen continue coproc declare dirs disown do done echo elif
    else enable esac eval exec exit export false fg fi for function getopts hash help history if in jobs kill let local
    logout mapfile popd printf pushd pwd read readarray readonly return select set shift shopt source suspend test then
    time times trap true type typeset ulimit umask unalias unset until wait while
    """,
    )
)
"""Built-ins and keywords of the shell."""


def program_in(said: str) -> str:
    """Returns the last program that a shell reports as not started; "" if none."""
    found = _SAID.findall(said)
    return found[-1] if found else ""


def owed(program: str, folder: Path, spec: SandboxSpec) -> bool:
    """Returns True if the agent must provide a program: it is in a folder writable by the agent, or the instruction or
    the solution names it."""
    if "/" in program:
        path = PurePosixPath(spec.workdir, program)
        return any(path.is_relative_to(each) for each in (spec.workdir, *spec.writable) if each != "/tests")
    texts = (folder / "instruction.md", *sorted((folder / "solution").rglob("*")))
    word = re.compile(rf"(?<![\w.-]){re.escape(program)}(?![\w-])") if program else None
    return word is not None and any(
        word.search(each.read_text(errors="replace")) is not None for each in texts if each.is_file()
    )


def called_in(script: Path) -> set[str]:
    """Returns the plain program names at the start of lines of a shell script, without built-ins."""
    lines = [*_lines(script.read_text(errors="replace"))]
    defined = set(re.findall(r"^\s*(?:function\s+)?([\w-]+)\s*\(\)", "\n".join(lines), re.MULTILINE))
    return {match[1] for line in lines if (match := _WORD.match(line))} - defined - _SHELL


def _lines(text: str) -> Iterator[str]:
    """Yields the lines of a script that begin a command: not in here-documents or quotes, and no continuations."""
    end, quote, goes_on = "", "", False
    for line in text.splitlines():
        if end:
            end = "" if line.strip() == end else end
            continue
        begins = not goes_on and not quote and not line.lstrip().startswith("#")
        if begins:
            yield line
        quote = _open_quote(line, quote) if quote or begins else ""
        goes_on = line.endswith("\\")
        here = None if quote else _HERE.search(line)
        end = here[1] if here else ""


def _open_quote(line: str, quote: str) -> str:
    """Returns the quote character open after a line; "" if none."""
    escaped = False
    for letter in line:
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
    return quote


def lacking(script: Path) -> set[str]:
    """Returns the programs called by a script that this machine lacks."""
    return {name for name in called_in(script) if shutil.which(name) is None}
