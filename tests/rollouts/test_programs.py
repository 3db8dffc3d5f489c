"""Programs as agents: started for each episode, recorded token by token, under the limits of any episode."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.api.run import Run
from agentrl.rollouts.programs.recorder import EpisodeRecorder
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError
from tests.clock import Clock

pytestmark = pytest.mark.slow

LIBRARY = """
import json, os, sys, time, urllib.request, urllib.error

def post(path, body):
    request = urllib.request.Request(os.environ["AGENTRL_URL"] + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)

DOUBLE = {"type": "function", "function": {"name": "double", "description": "Doubles.", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}

def chat(messages):
    return post("/v1/chat/completions", {"messages": messages, "tools": [DOUBLE]})["choices"][0]["message"]

def loop(question):
    messages = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": question}]
    while True:
        said = chat(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            n = json.loads(call["function"]["arguments"]).get("n", 0)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(2 * n)})

question = sys.stdin.read()
"""

TASK = """
from agentrl import Say

def oracle(task, rng):
    n = task.data["n"]
    observed = yield Say(calls=[("double", {"n": n})])
    yield Say(observed[-1]["content"])

def restless(task, rng):
    while True:
        yield Say(calls=[("double", {"n": 1})])
"""

RECIPE = """\
name: doubling
tasks: {{jsonl: tasks.jsonl, prompt: "Twice {{n}}?"}}
agent: {{program: [{python}, ./agent.py], max_turns: 4, format: tags{more}}}
rewards: {{right: {{use: exact_match, key: answer}}}}
scripts: {{oracle: ./task.py:oracle, restless: ./task.py:restless}}
model: {{scratch: {{vocab_size: 300, max_context: 512}}}}
limits: {{episode_s: {wall}, backoff_s: 0.01}}
"""


WALL_S = 200.0
"""Seconds that an episode may take. Those that reach them do so on a clock that is set forward."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"n": {n}, "answer": "{2 * n}"}}\n' for n in range(8)))
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


def run(folder: Path, program: str, *, n: int = 2, script: str = "oracle", more: str = "", wall: float = WALL_S) -> Run:
    (folder / "agent.py").write_text(LIBRARY + program)
    (folder / "recipe.yaml").write_text(RECIPE.format(python=sys.executable, more=more, wall=wall))
    return agentrl.rollout("recipe.yaml", n, script=script, out=folder / "run", reporters=())


def episodes(run: Run) -> list[Episode]:
    assert check(run.path).ok
    with RunDir.read(run.path) as stored:
        return sorted(stored.episodes(), key=lambda episode: episode.id)


def played(*given: Any, **more: Any) -> list[Episode]:
    return episodes(run(*given, **more))


def test_a_program_plays_its_episodes(folder: Path) -> None:
    """Its exit ends the episode, and the last line of stdout is the answer; rewards are the recipe's."""
    found = played(folder, "print('thinking'); print(loop(question)); print()", n=8)
    assert [episode.status for episode in found] == ["done"] * 8
    assert [(e.answer, e.reward, e.drift) for e in found] == [(e.task.data["answer"], 1.0, []) for e in found]
    episode = found[3]
    assert [message["content"] for message in episode.prompt] == ["Use the tool.", f"Twice {episode.task.data['n']}?"]
    assert [(c.name, c.arguments["n"], c.result) for c in episode.turns[0].calls] == [
        ("double", episode.task.data["n"], episode.answer)
    ]
    assert [tool["function"]["name"] for tool in episode.tools or []] == ["double"]
    assert [node.kind for node in episode.nodes] == ["prompt", "sampled", "observation", "sampled"]


def test_the_instruction_may_be_an_argument_and_the_answer_a_closing_call(folder: Path) -> None:
    program = """
assert question == "" and sys.argv[1:] == ["Twice 0?", "0"] and os.environ["TWO"] == "2 x 0", sys.argv
loop(sys.argv[1])
print(post("/end", {"answer": "0", "reward": 0.5}))
"""
    (folder / "agent.py").write_text(LIBRARY + program)
    text = RECIPE.format(python=sys.executable, more=', env: {TWO: "2 x {data.n}"}, closing_rewards: true', wall=WALL_S)
    text = text.replace("./agent.py]", './agent.py, "{instruction}", "{data.answer}"]')
    (folder / "recipe.yaml").write_text(text)
    (episode,) = episodes(agentrl.rollout("recipe.yaml", 1, script="oracle", out="run", reporters=()))
    assert (episode.status, episode.answer, episode.reward) == ("done", "0", 1.0)
    assert episode.turns[-1].rewards == {"reward": 0.5}


def test_a_program_finds_each_api_by_its_variables(folder: Path) -> None:
    program = """
def ask(base, path, body, **headers):
    request = urllib.request.Request(os.environ[base] + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)

asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 9}
ask("OPENAI_BASE_URL", "/chat/completions", asked, Authorization="Bearer " + os.environ["OPENAI_API_KEY"])
ask("ANTHROPIC_BASE_URL", "/v1/messages", asked, **{"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
asked = {"contents": [{"role": "user", "parts": [{"text": question}]}]}
said = ask("GOOGLE_GEMINI_BASE_URL", "/v1beta/models/any:generateContent", asked,
           **{"x-goog-api-key": os.environ["GEMINI_API_KEY"]})
print(said["modelVersion"], os.environ["GOOGLE_GENAI_USE_VERTEXAI"])
"""
    (episode,) = played(folder, program, n=1, script="restless")
    assert (len(episode.turns), episode.answer) == (3, "agentrl false")
    assert episode.info == {"apis": ["Anthropic Messages", "Gemini", "OpenAI chat completions"]}


def test_limits_end_a_program(folder: Path) -> None:
    """Four turns, then it is killed, with what it started."""
    program = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
try:
    loop(question)
except urllib.error.HTTPError:
    time.sleep(600)
"""
    (episode, _) = played(folder, program, script="restless")
    assert (episode.status, episode.stop, len(episode.turns)) == ("truncated", "turns", 4)
    assert episode.reward == 0.0


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The replies that programs have got so far."""
    found: list[Any] = []
    reply = EpisodeRecorder.reply

    async def noted(self: EpisodeRecorder, *given: Any, **more: Any) -> Any:
        said = await reply(self, *given, **more)
        found.append(said)
        return said

    monkeypatch.setattr(EpisodeRecorder, "reply", noted)
    return found


def stored(folder: Path) -> bool:
    """Returns True if an episode has ended."""
    shards = folder / "run" / "episodes"
    return shards.is_dir() and any(shard.stat().st_size for shard in shards.iterdir())


def test_a_program_that_hangs_is_ended_by_the_wall(
    folder: Path, replies: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Clock(monkeypatch).forward_when(lambda: len(replies) == 4, WALL_S):
        (episode, _) = played(folder, "loop(question); time.sleep(600)", wall=WALL_S)
    assert (episode.status, episode.stop, len(episode.turns)) == ("truncated", "wall", 2)


def test_a_flood_of_output_is_read_and_forgotten(folder: Path) -> None:
    (episode, _) = played(folder, "print('x' * 30_000_000); print(loop(question))")
    assert (episode.status, episode.answer) == ("done", "0")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("pass", "the program ended without a reply of the model"),
        ("post('/api/generate', {})", "exit code 1: .*HTTP Error 404"),
        (
            "try:\n    post('/api/generate', {})\nexcept urllib.error.HTTPError: pass",
            r"without a reply of the model; it asked for POST /s/sk-\w+/api/generate",
        ),
        ("loop(question); sys.exit('sorry')", r"exit code 1: sorry\s+-> agent.nonzero: end"),
        ("post('/v1/chat/completions', {'messages': []})", "exit code 1: .*HTTP Error 400"),
    ],
)
def test_a_program_that_does_not_do_its_work_is_a_user_error(folder: Path, program: str, said: str) -> None:
    (episode, _) = played(folder, program)
    assert (episode.status, episode.reward) == ("user_error", None)
    assert episode.error is not None
    assert episode.error.kind == "ProgramFailed"
    assert re.search(said, episode.error.message, re.DOTALL), episode.error.message
    assert "task tasks-" in episode.error.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"program": ["no-such-program"]}, "agent.program: there is no program 'no-such-program'"),
        ({"program": ["echo", "{data.ghost}"]}, "task tasks-.*: the task has no 'data.ghost'"),
    ],
)
def test_a_program_that_cannot_start_is_a_user_error(folder: Path, settings: dict[str, Any], said: str) -> None:
    (folder / "recipe.yaml").write_text(RECIPE.format(python=sys.executable, more="", wall=WALL_S))
    run = agentrl.rollout("recipe.yaml", 1, script="oracle", out="run", reporters=(), overrides={"agent": settings})
    (episode,) = episodes(run)
    assert episode.status == "user_error"
    assert episode.error is not None
    assert re.match(said, episode.error.message), episode.error.message


def test_a_program_that_never_asks_trains_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs until the wall, in one of two episodes of a group."""
    program = """
try:
    open(os.environ["MARK"], "x")
    time.sleep(600)
except FileExistsError:
    print(loop(question))
"""
    (folder / "agent.py").write_text(LIBRARY + program)
    (folder / "recipe.yaml").write_text(
        RECIPE.format(python=sys.executable, more=f", env: {{MARK: {folder}/mark}}", wall=WALL_S)
    )
    train = {"train.iterations": 1, "train.groups": 1, "train.group_size": 2, "sampling.max_tokens": 8}
    with Clock(monkeypatch).forward_when(lambda: stored(folder), WALL_S):
        made = agentrl.train("recipe.yaml", overrides=train, out="run", reporters=())
    assert made is not None
    hung, asked = sorted(episodes(made), key=lambda episode: len(episode.turns))
    assert (hung.status, hung.stop, len(hung.turns), hung.reward) == ("truncated", "wall", 0, 0.0)
    assert (asked.status, len(asked.turns)) == ("done", 1)


@pytest.mark.parametrize(
    "program",
    [
        "loop(question); os.kill(os.getpid(), 9)",
        "loop(question); os.kill(os.getpid(), 15)",
        "loop(question); sys.exit(137)",
    ],
)
def test_a_program_that_is_killed_again_has_a_reward(folder: Path, program: str) -> None:
    """By a command that the policy has it run, perhaps."""
    (episode, _) = played(folder, program)
    assert (episode.status, episode.stop, episode.attempt, episode.reward) == ("truncated", "tool_broken", 1, 0.0)


def test_a_program_that_is_killed_before_the_model_spoke_is_the_users(folder: Path) -> None:
    (episode, _) = played(folder, "os.kill(os.getpid(), 9)")
    assert episode.status == "user_error"


def test_an_exit_code_may_be_an_end_like_any_other(folder: Path) -> None:
    (episode, _) = played(folder, "print(loop(question)); sys.exit(3)", more=", nonzero: end")
    assert (episode.status, episode.reward) == ("done", 1.0)


def test_what_is_asked_after_the_end_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By a closed session, and by a process that outlived its program in a session of its own."""
    late = """
import subprocess
code = '''
import os, sys, time, urllib.request, urllib.error
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
request = urllib.request.Request(os.environ["AGENTRL_URL"] + "/v1/chat/completions", b'{"messages": []}')
said = ""
while "has ended" not in said:
    time.sleep(0.01)
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        said = f"{error.code} {error.read()}"
note = os.environ["NOTE"] + os.environ["AGENTRL_TASK"]
open(note + ".new", "w").write(said)
os.rename(note + ".new", note)
'''
if question == "Twice 0?":
    null = subprocess.DEVNULL
    command = [sys.executable, "-c", code, str(os.getpid())]
    subprocess.Popen(command, start_new_session=True, stdin=null, stdout=null, stderr=null)
else:
    while not os.path.exists(os.environ["NOTE"] + "tasks-1"):
        time.sleep(0.01)
loop(question)
print(post("/end", {"answer": "0"}))
try:
    chat([{"role": "user", "content": "more"}])
except urllib.error.HTTPError as error:
    assert error.code == 410, error.code
else:
    raise SystemExit("answered")
"""
    found = played(folder, late, more=f", env: {{NOTE: {folder}/note-}}")
    assert [(e.status, len(e.turns)) for e in found] == [("done", 2)] * 2
    note = (folder / "note-tasks-1").read_text()
    assert note.startswith("410")
    assert f"episode {found[0].id} has ended" in note


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (", system: Be brief.", "'system' does not reach a program"),
        (", colour: red", "colour"),
        (", nonzero: maybe", "nonzero"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_first_episode(folder: Path, more: str, said: str) -> None:
    with pytest.raises(AgentRLError, match=said):
        run(folder, "pass", more=more)


def test_a_program_runs_in_the_episode_s_sandbox(folder: Path) -> None:
    """Without a network, it reaches the policy; its files are there, and rewards see what it left."""
    program = """
open("seen", "w").write(question + open("data.txt").read())
print(loop(question))
"""
    (folder / "data.txt").write_text(" and data")
    (folder / "seen.py").write_text(
        "async def seen(sandbox):\n    return float((await sandbox.read('seen')).decode().endswith('? and data'))\n"
    )
    (folder / "agent.py").write_text(LIBRARY + program)
    text = RECIPE.format(python="python3", more=", where: sandbox, files: [./data.txt]", wall=WALL_S)
    (folder / "recipe.yaml").write_text(text)
    overrides = {"rewards.seen": "./seen.py:seen"}
    run = agentrl.rollout("recipe.yaml", 3, script="oracle", out="run", reporters=(), overrides=overrides)
    found = episodes(run)
    assert [(e.status, e.components, len(e.turns)) for e in found] == [("done", {"right": 1.0, "seen": 1.0}, 2)] * 3


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("loop(question); time.sleep(600)", ("truncated", "wall", 2)),
        ("print('x' * 3_000_000); loop(question); sys.exit(3)", ("truncated", "tool_broken", 2)),
    ],
)
def test_limits_hold_in_a_sandbox(
    folder: Path, replies: list[Any], monkeypatch: pytest.MonkeyPatch, program: str, ended: tuple[str, str, int]
) -> None:
    (folder / "agent.py").write_text(LIBRARY + program)
    (folder / "recipe.yaml").write_text(RECIPE.format(python="python3", more=", where: sandbox", wall=WALL_S))
    passes = Clock(monkeypatch).forward_when(lambda: len(replies) == 2, WALL_S)
    with passes if ended[1] == "wall" else nullcontext():
        (episode,) = episodes(agentrl.rollout("recipe.yaml", 1, script="oracle", out="run", reporters=()))
    assert (episode.status, episode.stop, len(episode.turns)) == ended


RELAY = """
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{name}/cmdline").read().split("\\0")
    except OSError:
        continue
    if "-S" in words and int(name) != os.getpid():
        os.kill(int(name), 9)
"""


def test_a_program_whose_relay_the_policy_ends_has_a_reward(folder: Path) -> None:
    (folder / "agent.py").write_text(
        f"{LIBRARY}\nchat([{{'role': 'user', 'content': question}}])\n{RELAY}\nloop(question)"
    )
    (folder / "recipe.yaml").write_text(RECIPE.format(python="python3", more=", where: sandbox", wall=WALL_S))
    (episode,) = episodes(agentrl.rollout("recipe.yaml", 1, script="oracle", out="run", reporters=()))
    assert (episode.status, episode.stop, episode.attempt, episode.reward) == ("truncated", "tool_broken", 1, 0.0)


def test_rewards_of_a_closing_call_are_refused_unless_the_recipe_takes_them(folder: Path) -> None:
    """The policy's own shell could send them."""
    program = """
said = loop(question)
try:
    post("/end", {"reward": 100})
except urllib.error.HTTPError as error:
    assert error.code == 403, error.code
    assert "closing_rewards: true" in error.read().decode()
else:
    raise SystemExit("taken")
post("/end", {"answer": said})
"""
    (episode, _) = played(folder, program)
    assert (episode.status, episode.reward, episode.turns[-1].rewards) == ("done", 1.0, {})


def test_a_child_that_holds_the_streams_does_not_hold_the_episode(
    folder: Path, replies: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session of its own, past the end of its program and past the limit."""
    program = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(os.environ["NOTE"], "a").write(f"{child.pid}\\n")
loop(question)
if question != "Twice 0?":
    time.sleep(600)
"""
    with Clock(monkeypatch).forward_when(lambda: len(replies) == 4 and stored(folder), WALL_S):
        found = played(folder, program, more=f", env: {{NOTE: {folder}/pids}}", wall=WALL_S)
    assert [(e.status, e.stop) for e in found] == [("done", "answer"), ("truncated", "wall")]
    for pid in (folder / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)  # alive still: nobody waited for it
