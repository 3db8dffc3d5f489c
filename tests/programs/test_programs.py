"""Programs that nobody here wrote train as they are: mini-swe-agent, LangGraph's, OpenAI's Agents SDK, smolagents.

`make test-programs` installs them in an environment of their own and runs this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl

BIN = Path(__file__).parents[2] / ".venv-programs/bin"

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
MINI = (
    '[{bin}/mini, -m, "openai/{{model}}", -t, "{{instruction}}", -y, --exit-immediately, -c, mini.yaml, -c, '
    '"agent.instance_template={{{{task}}}}", -o, out.json], nonzero: end, env: {{MSWEA_CONFIGURED: "true", '
    'MSWEA_SILENT_STARTUP: "1", MSWEA_COST_TRACKING: ignore_errors, MSWEA_GLOBAL_CONFIG_DIR: .}}'
)
PROGRAMS = {
    "mini": MINI,
    "langgraph": "[{bin}/python, ./langgraph_agent.py], nonzero: end",
    "agents": "[{bin}/python, ./agents_agent.py], nonzero: end",
    "smolagents": "[{bin}/python, ./smolagents_agent.py], nonzero: end",
}
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
    (tmp_path / "smolagents_agent.py").write_text(SMOLAGENTS)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "tasks.jsonl").write_text('{"n": 4}\n{"n": 7}\n')
    program = PROGRAMS[name].format(bin=BIN)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(name=name, program=program))
    agentrl("train", "recipe.yaml", cwd=tmp_path, timeout=1000)
    run = tmp_path / "runs" / name
    assert "sound" in agentrl("check", str(run), cwd=tmp_path).stdout
    with RunDir.read(run) as stored:
        lines = [line for line in stored.metrics() if "mismatch_max" in line]
        demos, trained = list(stored.episodes(split="demo")), list(stored.episodes(split="train"))
    assert [len(demo.turns) for demo in demos] == [2, 2]
    if name == "smolagents":  # it writes each reply anew into its history
        assert [[branch.reason for branch in demo.branches] for demo in demos] == [["edit"], ["edit"]]
        assert {demo.turns[0].text[-7:] for demo in demos} == {"</code>"}
        assert {demo.answer for demo in demos} == {"8", "14"}
    else:
        assert all(demo.turns[0].calls for demo in demos)
    assert not any(demo.drift for demo in demos)
    assert [line["iteration"] for line in lines] == [1, 2]
    assert len(trained) == 8
    assert all(line["mismatch_max"] < 1e-3 for line in lines)
