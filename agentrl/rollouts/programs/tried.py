"""Agent programs and frameworks of others that train unmodified: `agentrl program list`.

The tests of the family `programs` train every entry with its settings (tests/programs). The versions are those that are
pinned for them (requirements/).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any, Literal

API = Literal["OpenAI chat completions", "OpenAI Responses", "Anthropic Messages", "Gemini"]

_OWN: dict[str, Any] = {"agent.program": ["python", "./agent.py"]}
"""Settings for a program of one's own, written with a framework."""


@dataclass(frozen=True)
class TriedProgram:
    """A program that was trained unmodified, or a framework of which one was.

    Attributes:
        name: of its package.
        registry: of the package.
        version: that was tried.
        api: over which it requests replies.
        settings: of the recipe, by dotted key.
        drift: reasons of the branches of a conversation in which every reply has a call until the last. A branch
            renders the conversation anew, and the replies in it with it; without one, no token is rendered twice.
        note: what else its users should know.
    """

    name: str
    registry: Literal["PyPI", "npm"]
    version: str
    api: API
    settings: dict[str, Any] = field(default_factory=lambda: _OWN)
    drift: tuple[Literal["edit", "fork"], ...] = ()
    note: str = ""

    @property
    def command(self) -> str:
        """The command that trains with it."""
        keys = (f"{key}={json.dumps(value)}" for key, value in self.settings.items())
        return " ".join(["agentrl train RECIPE", *map("--set {}".format, map(shlex.quote, keys))])


_SETTINGS = json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}})
_GEMINI = 'mkdir .gemini && echo "$SETTINGS" > .gemini/settings.json && exec gemini "$@"'

TRIED: tuple[TriedProgram, ...] = (
    TriedProgram(
        "mini-swe-agent",
        "PyPI",
        "2.4.6",
        "OpenAI chat completions",
        settings={
            "agent.program": ["mini", "-m", "openai/{model}", "-t", "{instruction}", "-y", "--exit-immediately"],
            "agent.nonzero": "end",
            "agent.env": {
                "MSWEA_CONFIGURED": "true",
                "MSWEA_SILENT_STARTUP": "1",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_GLOBAL_CONFIG_DIR": ".",
            },
        },
        note="leaves a reply without a call out of its history, which starts a branch (fork)",
    ),
    TriedProgram(
        "@google/gemini-cli",
        "npm",
        "0.61.0",
        "Gemini",
        settings={
            "agent.program": [
                "sh",
                "-c",
                _GEMINI,
                "-",
                "-p",
                "{instruction}",
                "--approval-mode",
                "yolo",
                "--skip-trust",
            ],
            "agent.nonzero": "end",
            "agent.env": {"GEMINI_CLI_HOME": ".", "GEMINI_CLI_NO_RELAUNCH": "true", "SETTINGS": _SETTINGS},
            "openings": "differ",
        },
        note="its prompt names the episode's folder; its settings must name the way in, gemini-api-key",
    ),
    TriedProgram("langgraph", "PyPI", "1.2.22", "OpenAI chat completions", note="with langchain-openai; streams"),
    TriedProgram("openai-agents", "PyPI", "0.24.0", "OpenAI Responses"),
    TriedProgram(
        "smolagents",
        "PyPI",
        "1.26.0",
        "OpenAI chat completions",
        drift=("edit",),
        note="CodeAgent writes each reply anew into its history; ToolCallingAgent needs tool_choice='auto'",
    ),
    TriedProgram("pydantic-ai-slim", "PyPI", "2.68.0", "Anthropic Messages", note="pydantic-ai-slim[anthropic]"),
    TriedProgram("agno", "PyPI", "3.1.10", "Gemini", note="with google-genai"),
    TriedProgram("google-genai", "PyPI", "3.6.1", "Gemini", note="its automatic function calls"),
)
"""In the order in which they are listed."""
