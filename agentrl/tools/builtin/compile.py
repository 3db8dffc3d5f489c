"""The `compile` tool: compiles and runs a program in the sandbox."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from agentrl.tools.base import Tool, own, tool
from agentrl.tools.builtin.shell import GRACE_S
from agentrl.tools.words import Word
from agentrl.types.errors import RecipeError
from agentrl.types.sandbox import ExecResult, Sandbox
from agentrl.types.task import Task


@dataclass(frozen=True)
class Language:
    """Build and run commands of a language.

    Attributes:
        file: file name of the program.
        build: shell command that compiles it, in its folder.
        run: shell command that runs it, in its folder.
    """

    file: str
    build: str
    run: str


LANGUAGES = {
    "c": Language("main.c", "gcc -std=gnu17 -O2 -Wall -o main main.c -lm", "./main"),
    "cpp": Language("main.cpp", "g++ -std=gnu++20 -O2 -Wall -o main main.cpp", "./main"),
}
"""Languages with a compiler in the image `agentrl/swe`."""


FOLDER = "program"
"""Folder of the programs, in the workdir."""


class Compile(Tool):
    """Offers `compile_and_run(code, input)`. The last program stays in the folder `program`, for other tools.

    Args:
        language: `c` or `cpp`; without it, give the next three.
        file: name of a program's file: `Main.java`.
        build: shell command that compiles it, in its folder: `javac Main.java`.
        run: shell command that runs it: `java Main`.
        compile_s: timeout of the compiler.
        timeout_s: timeout of the program.
        output_limit: maximum bytes shown to the model, each of compiler and program: head and tail.

    Raises:
        RecipeError: neither a language nor all of `file`, `build` and `run`; or both.
    """

    needs_sandbox = keeps_files_alone = True

    def __init__(
        self,
        language: Literal["c", "cpp"] | None = None,
        file: str | None = None,
        build: str | None = None,
        run: str | None = None,
        compile_s: float = 60.0,
        timeout_s: float = 10.0,
        output_limit: int = 8_000,
    ) -> None:
        self.language = _language(language, file, build, run)
        self.compile_s, self.run_s, self.output_limit = compile_s, timeout_s, output_limit
        self.timeout_s = compile_s + timeout_s + 3 * GRACE_S

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Checks that the sandbox has the compiler.

        Raises:
            RecipeError: the compiler is missing.
        """
        self.sandbox = own(sandbox)
        compiler = shlex.split(self.language.build)[0]
        if not (await self.sandbox.exec(f"command -v {shlex.quote(compiler)}", timeout_s=30)).ok:
            raise RecipeError(
                f"compile: there is no {compiler} in the sandbox",
                place="tools",
                remedy="sandbox: {spec: {image: agentrl/swe}} has gcc and g++ (agentrl sandbox build swe)",
            )

    @tool
    async def compile_and_run(self, code: Word, input: str = "") -> str:
        """Compile a program and run it. What the compiler says, what the program puts out, and how it ended are shown.

        Args:
            code: the whole program, one file.
            input: what it reads from standard input.
        """
        await self.sandbox.exec(f"rm -rf {FOLDER}", timeout_s=30)  # a leftover of an earlier program could be run
        await self.sandbox.write(f"{FOLDER}/{self.language.file}", code)
        built = await self._run(self.language.build, b"", self.compile_s)
        said = _told("compiler", built, self.compile_s)
        if not built.ok:
            return "\n".join(["[it does not compile]", *said])
        ran = await self._run(self.language.run, input.encode(errors="replace"), self.run_s)
        return "\n".join([*said, *_told("program", ran, self.run_s)]) or "[no output]"

    async def _run(self, command: str, stdin: bytes, timeout_s: float) -> ExecResult:
        return await self.sandbox.exec(
            command, stdin=stdin, cwd=FOLDER, timeout_s=timeout_s, output_limit=self.output_limit
        )


def _told(who: str, result: ExecResult, timeout_s: float) -> list[str]:
    """Returns the output, and the outcome if the command did not succeed."""
    ending = {
        "ok": "",
        "nonzero": f"[{who}: exit code {result.code}]",
        "timeout": f"[{who}: timed out after {timeout_s:g} s and was ended]",
        "oom": f"[{who}: killed: out of memory]",
        "signal": f"[{who}: ended by a signal, exit code {result.code}]",
        "output_limit": f"[{who}: ended: far too much output]",
    }[result.outcome]
    return [part for part in (result.text.rstrip("\n"), ending) if part]


def _language(language: str | None, file: str | None, build: str | None, run: str | None) -> Language:
    own = (file, build, run)
    if language in LANGUAGES and own == (None, None, None):
        return LANGUAGES[language]
    if language is None and file and build and run:
        return Language(file, build, run)
    raise RecipeError(
        f"compile: language is {language!r}, and file, build and run are {own}",
        place="tools",
        remedy=f"language: {' or '.join(LANGUAGES)}; or all of file, build and run: "
        "{file: Main.java, build: javac Main.java, run: java Main}",
    )
