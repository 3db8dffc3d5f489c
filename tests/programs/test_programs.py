"""Programs that nobody here wrote train as they are: each that `agentrl program list` shows, with the settings there.

`make test-programs` installs them in an environment of their own and runs this.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.rollouts.programs.tried import TRIED, TriedProgram
from agentrl.store.run_dir import RunDir
from tests.command import agentrl

HERE = Path(__file__).parents[2] / ".venv-programs"

pytestmark = pytest.mark.family("programs")

LANGGRAPH = '''
import os, sys
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

@tool
def double(n: int) -> str:
    """Doubles."""
    return str(2 * n)

model = ChatOpenAI(model=os.environ["AGENTRL_MODEL"], streaming=True)
agent = create_react_agent(model, [double], prompt="Use the tool.")
print(agent.invoke({"messages": [("user", sys.stdin.read())]})["messages"][-1].content)
'''
AGENTS = '''
import os, sys
from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)

@function_tool
def double(n: int) -> str:
    """Doubles."""
    return str(2 * n)

agent = Agent(name="doubler", instructions="Use the tool.", tools=[double], model=os.environ["AGENTRL_MODEL"])
print(Runner.run_sync(agent, sys.stdin.read()).final_output)
'''
SMOLAGENTS = '''
import os, sys
from smolagents import CodeAgent, OpenAIModel, tool

@tool
def double(n: int) -> int:
    """Doubles.

    Args:
        n: The number.
    """
    return 2 * n

agent = CodeAgent(tools=[double], model=OpenAIModel(os.environ["AGENTRL_MODEL"]), max_steps=2, verbosity_level=0)
agent.prompt_templates["system_prompt"] = "Write Python between <code> and </code>: double, final_answer."
print(agent.run(sys.stdin.read()))
'''
PYDANTIC = '''
import os, sys
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel

agent = Agent(AnthropicModel(os.environ["AGENTRL_MODEL"]), instructions="Use the tool.")

@agent.tool_plain
def double(n: int) -> str:
    """Doubles."""
    return str(2 * n)

print(agent.run_sync(sys.stdin.read()).output)
'''
AGNO = '''
import os, sys
from agno.agent import Agent
from agno.models.google import Gemini

def double(n: int) -> str:
    """Doubles."""
    return str(2 * n)

model = Gemini(id=os.environ["AGENTRL_MODEL"])
agent = Agent(model=model, tools=[double], instructions="Use the tool.", telemetry=False)
print(agent.run(sys.stdin.read()).content)
'''
GENAI = '''
import os, sys
from google import genai

def double(n: int) -> str:
    """Doubles."""
    return str(2 * n)

config = genai.types.GenerateContentConfig(system_instruction="Use the tool.", tools=[double])
client = genai.Client()
chat = client.chats.create(model=os.environ["AGENTRL_MODEL"], config=config)
print(chat.send_message(sys.stdin.read()).text)
'''
AGENTS_PY = {
    "langgraph": LANGGRAPH,
    "openai-agents": AGENTS,
    "smolagents": SMOLAGENTS,
    "pydantic-ai-slim": PYDANTIC,
    "agno": AGNO,
    "google-genai": GENAI,
}
"""`agent.py` of the frameworks."""
GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "tools": {"core": ["run_shell_command"]},
    "privacy": {"usageStatisticsEnabled": False},
}
"""Those of the user: it takes none of the system's from a folder below one that others may write, like /tmp."""
SHORT: dict[str, dict[str, Any]] = {
    "mini-swe-agent": {
        "program": ["-c", "mini.yaml", "-c", "agent.instance_template={{task}}", "-o", "out.json"],
    },
    "@google/gemini-cli": {
        "files": ["./system.md"],
        "env": {"SETTINGS": json.dumps(GEMINI_SETTINGS), "GEMINI_SYSTEM_MD": "system.md"},
    },
}
"""Further settings of programs, for prompts that a tiny model can be trained on."""
TASK = """
from agentrl import Say

def oracle(task, rng, tools):
    n = task.data["n"]
    if not tools:  # smolagents: calls are code, and its stop string ends them
        yield Say(f"I double.\\n<code>\\nprint(double({n}))\\n</code>")
        yield Say(f"<code>\\nfinal_answer({2 * n})\\n</code>")
    if tools[0]["function"]["name"] == "double":
        observed = yield Say(calls=[("double", {"n": n})])
        yield Say(observed[-1]["content"])
    if tools[0]["function"]["name"] == "run_shell_command":  # gemini-cli
        observed = yield Say("I look.", calls=[("run_shell_command", {"command": f"expr 2 \\* {n}"})])
        yield Say(observed[-1]["content"].partition("Output: ")[2].split()[0])
    yield Say("I look.", calls=[("bash", {"command": f"echo $((2 * {n}))"})])  # mini-swe-agent
    yield Say("Done.", calls=[("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})])

def length(episode):
    return len(episode.turns[0].text) / 100
"""
RECIPE: dict[str, Any] = {
    "name": "tried",
    "tasks": {"jsonl": "tasks.jsonl", "prompt": "Twice {n}?"},
    "agent": {"max_turns": 3, "format": "tags", "describe_tools": False},
    "rewards": {"length": "./task.py:length"},
    "scripts": {"oracle": "./task.py:oracle"},
    "model": {"scratch": {"vocab_size": 300, "max_context": 8192, "hidden": 32}},
    "sampling": {"max_tokens": 24},
    "concurrency": 4,
    "warm_start": {"script": "oracle", "episodes": 2, "steps": 20, "batch": 2, "lr": 2.0e-3},
    "train": {"iterations": 2, "groups": 2, "group_size": 2},
}


def settings_of(tried: TriedProgram) -> dict[str, Any]:
    """The settings that are listed, and those of the test, by dotted key."""
    short, given = SHORT.get(tried.name, {}), tried.settings
    more = {
        "agent.program": [*given["agent.program"], *short.get("program", ())],
        "agent.env": {**given.get("agent.env", {}), **short.get("env", {})},
        "agent.files": short.get("files", []),
    }
    return {**given, **more, "agent.nonzero": "end"}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tried", [pytest.param(each, id=each.name) for each in TRIED])
def test_it_trains_as_it_is(tried: TriedProgram, tmp_path: Path) -> None:
    """Two steps; what the engine sampled is what the trainer computes again, token for token."""
    if tried.settings["agent.program"][-1] == "./agent.py":
        (tmp_path / "agent.py").write_text(AGENTS_PY[tried.name])
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "tasks.jsonl").write_text('{"n": 4}\n{"n": 7}\n')
    (tmp_path / "system.md").write_text("Use the tool.")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    sets = [f"--set={key}={json.dumps(value)}" for key, value in settings_of(tried).items()]
    path = os.pathsep.join([str(HERE / "bin"), str(HERE / "node_modules/.bin"), os.environ["PATH"]])
    agentrl("train", "recipe.yaml", *sets, cwd=tmp_path, timeout=1000, PATH=path)
    run = tmp_path / "runs/tried"
    assert "sound" in agentrl("check", str(run), cwd=tmp_path).stdout
    with RunDir.read(run) as stored:
        lines = [line for line in stored.metrics() if "mismatch_max" in line]
        demos, trained = list(stored.episodes(split="demo")), list(stored.episodes(split="train"))
    assert [len(demo.turns) for demo in demos] == [2, 2]
    assert [tuple(branch.reason for branch in demo.branches) for demo in demos] == [tried.drift, tried.drift]
    again = [sum(len(node.token_ids) for node in demo.nodes[1:] if node.kind == "prompt") for demo in demos]
    assert all(tokens > 0 for tokens in again) == bool(tried.drift)
    if tried.name == "smolagents":
        assert {demo.turns[0].text[-7:] for demo in demos} == {"</code>"}
        assert {demo.answer for demo in demos} == {"8", "14"}
    else:
        assert all(demo.turns[0].calls for demo in demos)
    assert not any(demo.drift for demo in demos)
    assert {api for episode in (*demos, *trained) for api in episode.info["apis"]} == {tried.api}
    assert [line["iteration"] for line in lines] == [1, 2]
    assert len(trained) == 8
    assert all(line["mismatch_max"] < 1e-3 for line in lines)
