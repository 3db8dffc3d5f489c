"""Programs that nobody here wrote train as they are: mini-swe-agent, LangGraph's agent, OpenAI's Agents SDK.

`make test-programs` installs them in an environment of their own and runs this.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl

pytestmark = pytest.mark.skipif(
    "AGENTRL_TEST_PROGRAMS" not in os.environ, reason="make test-programs: installs three agent frameworks"
)

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
MINI = (
    '[{bin}/mini, -m, "openai/{{model}}", -t, "{{instruction}}", -y, --exit-immediately, -c, mini.yaml, -c, '
    '"agent.instance_template={{{{task}}}}", -o, out.json], nonzero: end, env: {{MSWEA_CONFIGURED: "true", '
    'MSWEA_SILENT_STARTUP: "1", MSWEA_COST_TRACKING: ignore_errors, MSWEA_GLOBAL_CONFIG_DIR: .}}'
)
PROGRAMS = {
    "mini": MINI,
    "langgraph": "[{bin}/python, ./langgraph_agent.py], nonzero: end",
    "agents": "[{bin}/python, ./agents_agent.py], nonzero: end",
}
TASK = """
from agentrl import Say

def oracle(task, rng, tools):
    n = task.data["n"]
    if tools[0]["function"]["name"] == "double":
        observed = yield Say(calls=[("double", {"n": n})])
        yield Say(observed[-1]["content"])
    yield Say("I look.", calls=[("bash", {"command": f"echo $((2 * {n}))"})])
    yield Say("Done.", calls=[("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})])

def length(episode):
    return len(episode.turns[0].text) / 100
"""
RECIPE = """\
name: {name}
tasks: {{jsonl: tasks.jsonl, prompt: "Twice {{n}}?"}}
agent: {{program: {program}, max_turns: 3, format: tags, describe_tools: false}}
rewards: {{length: ./task.py:length}}
scripts: {{oracle: ./task.py:oracle}}
model: {{scratch: {{vocab_size: 300, max_context: 2048, hidden: 32}}}}
sampling: {{max_tokens: 24}}
concurrency: 4
warm_start: {{script: oracle, episodes: 2, steps: 20, batch: 2, lr: 2.0e-3}}
train: {{iterations: 2, groups: 2, group_size: 2}}
"""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_trains_as_it_is(name: str, tmp_path: Path) -> None:
    """Two steps; what the engine sampled is what the trainer computes again, token for token."""
    (tmp_path / "langgraph_agent.py").write_text(LANGGRAPH)
    (tmp_path / "agents_agent.py").write_text(AGENTS)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "tasks.jsonl").write_text('{"n": 4}\n{"n": 7}\n')
    program = PROGRAMS[name].format(bin=os.environ["AGENTRL_TEST_PROGRAMS"])
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(name=name, program=program))
    agentrl("train", "recipe.yaml", cwd=tmp_path, timeout=1000)
    run = tmp_path / "runs" / name
    assert "sound" in agentrl("check", str(run), cwd=tmp_path).stdout
    with RunDir.read(run) as stored:
        lines = [line for line in stored.metrics() if "mismatch_max" in line]
        demos, trained = list(stored.episodes(split="demo")), list(stored.episodes(split="train"))
    assert [len(demo.turns) for demo in demos] == [2, 2]
    assert all(demo.turns[0].calls and not demo.drift for demo in demos)
    assert [line["iteration"] for line in lines] == [1, 2]
    assert len(trained) == 8
    assert all(line["mismatch_max"] < 1e-3 for line in lines)
