"""How programs of a language are compiled and run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """A language.

    Attributes:
        file: name of the program's file.
        build: shell command that compiles it, in its folder.
        run: shell command that runs it, there.
    """

    file: str
    build: str
    run: str


LANGUAGES = {
    "c": Language("main.c", "gcc -std=gnu17 -O2 -Wall -o main main.c -lm", "./main"),
    "cpp": Language("main.cpp", "g++ -std=gnu++20 -O2 -Wall -o main main.cpp", "./main"),
}
"""Those whose compiler is in the image `agentrl/swe`."""
