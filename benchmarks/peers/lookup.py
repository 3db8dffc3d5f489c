"""The task that all arms of `benchmarks.runner` work on, and the meter they are measured with.

Standard library only: it is imported by environments that have nothing else in common.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import resource
import time
from typing import Any

SYSTEM = "You look values up. Use the tool until you know the answer, then say it."
TOOL_NAME = "lookup"
TOOL_TEXT = "Look a key up in the table."
ANSWER = "forty-two"
LOGPROB = -0.25
"""Of every token that the mock server samples."""

WORDS = (
    "the table lists every part of the machine with its number and the shelf where it lies while a note beside it says "
    "which other part must be looked up next before the order can be sent to the workshop in the morning "
)


def question(number: int) -> str:
    """The user message of task `number`."""
    return f"Task {number}: what is the value that belongs to part {number % 97}?"


def observation(key: str) -> str:
    """What the tool says: about 400 characters."""
    return f"{key}: {WORDS * 2}"[:400]


def thought(turn: int) -> str:
    """What the model says before a call: about 40 words."""
    return f"Turn {turn}: {WORDS}"


def call(turn: int) -> dict[str, Any]:
    """The tool call of a turn."""
    return {"name": TOOL_NAME, "arguments": {"key": f"part-{turn}"}}


def final() -> str:
    """The last reply."""
    return f"The value is {ANSWER}."


def turn_end_of(folder: str) -> int:
    """The token that ends a message, in a tokenizer's folder."""
    with open(f"{folder}/tokenizer.json", encoding="utf-8") as file:
        added = json.load(file)["added_tokens"]
    return next(int(token["id"]) for token in added if token["content"] == "<|im_end|>")


class Job(argparse.Namespace):
    """What an arm is to do."""

    url: str
    tokenizer: str
    out: str
    episodes: int
    turns: int
    concurrency: int
    warmup: int

    @classmethod
    def from_command_line(cls) -> Job:
        """Reads the job that `benchmarks.runner` wrote on the arm's command line."""
        parser = argparse.ArgumentParser()
        for name in ("url", "tokenizer", "out"):
            parser.add_argument(f"--{name}", required=True)
        for name in ("episodes", "turns", "concurrency", "warmup"):
            parser.add_argument(f"--{name}", type=int, required=True)
        return parser.parse_args(namespace=cls())


class Meter:
    """Wall and CPU seconds of this process since `start`, and how its memory grew."""

    def start(self) -> None:
        """Begins to measure. With the environment variable `PROFILE`, a file, also profiles."""
        self.profile = cProfile.Profile(time.thread_time) if os.environ.get("PROFILE") else None
        if self.profile is not None:
            self.profile.enable()
        self.resident = _resident()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def report(self, *, right: int, stored: int) -> None:
        """Prints the measurement as a line of JSON.

        Args:
            right: episodes that ended with the right answer.
            stored: bytes on disk.
        """
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        if self.profile is not None:
            self.profile.disable()
            self.profile.dump_stats(os.environ["PROFILE"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        row = {
            "wall_s": wall,
            "cpu_s": cpu,
            "right": right,
            "stored_bytes": stored,
            "grown_bytes": max(0, peak - self.resident),
            "peak_bytes": peak,
        }
        print(json.dumps(row), flush=True)


def bytes_in(folder: str) -> int:
    """Of all files below a folder."""
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
