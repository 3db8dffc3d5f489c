"""The `mcp` tool against servers of the SDK, and against programs that are none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="pip install 'agentrl-framework[mcp]'")

from agentrl.engines.scripted import Say
from agentrl.tools.base import ToolResult
from agentrl.tools.builtin.mcp.connection import ServerEnded, ServerLost, connect
from agentrl.tools.builtin.mcp.settings import McpSettings
from agentrl.tools.builtin.mcp.tool import Mcp
from agentrl.tools.methods import method
from agentrl.types.errors import MissingExtra, RecipeError, TaskError, ToolError
from agentrl.types.task import Task
from tests.rollouts.world import collect, make_context, make_parts, play_one, specs
from tests.waiting import limits, running_program, stop, turns, until, until_async, until_listening

pytestmark = pytest.mark.slow

SERVER = str(Path(__file__).parent / "server.py")
STDIO: dict[str, Any] = {"command": [sys.executable, SERVER], "timeout_s": 300}


class Opened:
    """An open tool, called as a model calls it."""

    def __init__(self, tool: Mcp) -> None:
        self.tool = tool

    def names(self) -> list[str]:
        return [each.name for each in self.tool.tools()]

    def schema(self, name: str) -> dict[str, Any]:
        return next(each.schema for each in self.tool.tools() if each.name == name)

    async def call(self, name: str, **arguments: Any) -> ToolResult:
        offered = next(each for each in self.tool.tools() if each.name == name)
        return await method(self.tool, offered).call(arguments)

    async def text(self, name: str, **arguments: Any) -> str:
        return (await self.call(name, **arguments)).text


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[Opened]:
    tool = Mcp(McpSettings.model_validate(settings))
    await tool.open(Task.of("t", "?"), None)
    try:
        yield Opened(tool)
    finally:
        await tool.close()


def script(code: str, **more: Any) -> dict[str, Any]:
    return {"command": [sys.executable, "-c", code], "timeout_s": 1, **more}


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server over HTTP, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, SERVER, str(port)]
    with running_program(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until_listening(port, process)
        yield process, f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as (_, url):
        yield url


@pytest.fixture(params=["stdio", "http"])
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    return STDIO if request.param == "stdio" else {"url": request.getfixturevalue("url")}


async def test_results_become_texts_and_images(where: dict[str, Any]) -> None:
    async with opened(**where) as server:
        assert await server.text("add", a=2, b=3) == "5"
        assert await server.text("add", a=2) == "3"
        picture = await server.call("picture")
        assert (picture.text, [image[:4] for image in picture.images]) == ("red", [b"\x89PNG"])
        assert await server.text("other") == "[report: file:///report]\ninside\neA=="
        assert json.loads(await server.text("table")) == {"tea": 3}
        with pytest.raises(ToolError, match="the shop is closed"):
            await server.call("fail")
        with pytest.raises(ToolError, match="argument 'a': field required"):
            await server.call("add")
        with pytest.raises(ToolError, match="should be integer"):
            await server.call("add", a="x")


async def test_names_are_chosen_and_prefixed(url: str) -> None:
    async with opened(url=url, include=["add", "tally", "fail"], exclude=["fail"], prefix="shop_") as server:
        assert server.names() == ["shop_add", "shop_tally"]
        assert await server.text("shop_add", a=1, b=1) == "2"


async def test_a_process_for_each_episode() -> None:
    async with opened(**STDIO) as one, opened(**STDIO) as two:
        assert (await one.text("tally"))[:2] == (await two.text("tally"))[:2] == "1 "


async def test_the_environment_is_what_the_recipe_says_and_too_much_is_an_observation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_TESTS", "42")
    async with opened(**STDIO, env={"TEA": "Assam", "KEY": "$SECRET_OF_TESTS"}, max_bytes=1_000_000) as server:
        assert await server.text("variable", which="TEA") == "Assam"
        assert await server.text("variable", which="KEY") == "42"
        assert await server.text("variable", which="SECRET_OF_TESTS") == "unset"
        assert await server.text("chatter", mb=20) == "done", "noise on both outputs stops nobody"
        with pytest.raises(ToolError, match="MB"):
            await server.call("flood", mb=20)
        assert await server.text("add", a=1, b=1) == "2", "the session goes on"
    with pytest.raises(RecipeError, match="NO_SUCH_VARIABLE is not set"):
        Mcp(McpSettings.model_validate({**STDIO, "env": {"KEY": "$NO_SUCH_VARIABLE"}}))


@pytest.mark.parametrize("env", [{"CHANGES": "1"}, {"TELLS": "1"}, {"CHANGES": "1", "TELLS": "1"}])
async def test_a_list_that_changes_is_read_again(env: dict[str, str]) -> None:
    async with opened(**STDIO, env=env) as server:
        assert "treasure" not in server.names()
        await server.text("unlock")
        if "CHANGES" not in env:  # told, but not promised: it follows as soon as it is read
            await until_async(lambda: "treasure" in server.names())
        assert "treasure" in server.names()
        assert await server.text("treasure") == "gold"


async def test_an_answer_over_http_that_is_too_long_is_an_observation(url: str) -> None:
    async with opened(url=url, max_bytes=1_000_000) as server:
        with pytest.raises(ToolError, match="MB|byte limit"):
            await server.call("flood", mb=5)
        assert await server.text("add", a=1, b=1) == "2", "the session goes on"


async def test_a_server_that_dies_is_a_failure_that_says_how_and_is_started_again_if_shared() -> None:
    async with opened(**STDIO, env={"A": "again"}, shared=True) as server:
        with pytest.raises(ServerLost, match="exit code 3; its stderr ends: out of tea"):
            await server.call("die")
        with pytest.raises(ServerLost):
            await server.call("add", a=1)
    async with opened(**STDIO, env={"A": "again"}, shared=True) as server:
        assert await server.text("add", a=1, b=1) == "2"


BEGINS = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    listed[asked.get("method")] = listed.get(asked.get("method"), 0) + 1
    if asked.get("method") == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "serverInfo": {"name": "s", "version": "1"},
                  "capabilities": {"tools": {"listChanged": True}}}
    elif asked.get("method") == "tools/list" and listed["tools/list"] <= LISTS:
        result = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
    elif asked.get("method") == "tools/call":
        result = {"content": [{"type": "text", "text": "2" if asked["params"]["name"] == "add" else str(os.getpid())}]}
    elif asked.get("method") == "tools/list" and FAILS:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32603, "message": "no"}}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def begins(lists: int, fails: bool = False) -> str:
    """A server that lists its tools so often, and then not at all, or with an error."""
    return f"listed, LISTS, FAILS = {{}}, {lists}, {fails}\n{BEGINS}"


async def test_an_answer_of_many_values_is_an_observation_and_the_session_goes_on() -> None:
    """Reading it would hold up everybody for seconds."""
    result = "[[]] * 600_000 if asked['method'] == 'tools/call' else result"
    many = begins(9).replace('"result": result}', f'"result": {result}}}')
    async with opened(**script(many, timeout_s=300)) as server:
        with pytest.raises(ToolError, match="more than 500,000 values"):
            await server.text("add")


async def test_a_server_that_never_lists_its_tools_is_a_failure() -> None:
    with pytest.raises(ServerLost, match="no answer within 1 s"):
        async with opened(**script(begins(0))):
            pass


@pytest.mark.parametrize("fails", [True, False])
async def test_a_list_that_cannot_be_read_again_takes_no_result_away(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.tools.builtin.mcp.connection.LIST_S", 0.2)
    async with opened(**script(begins(1, fails), timeout_s=300)) as server:
        assert await server.text("add") == "2"
        assert server.names() == ["add"]


async def test_one_process_for_all_episodes_whichever_of_them_is_cancelled() -> None:
    settings = {**STDIO, "env": {"A": "cancelled"}, "shared": True}
    first = asyncio.create_task(connect(McpSettings.model_validate(settings)))
    await turns()
    second = asyncio.create_task(connect(McpSettings.model_validate(settings)))
    await turns()
    first.cancel()
    connection = await second
    assert (await connection.call("tally", {})).content[0].text[:2] == "1 "
    async with opened(**settings) as one, opened(**settings) as two:
        assert (await one.text("tally"))[:2] == "2 "
        assert (await two.text("tally"))[:2] == "3 "
    async with opened(**settings) as three:
        assert (await three.text("tally"))[:2] == "4 ", "it outlives an episode"
    await connection.close()


async def test_episodes_share_at_most_so_many_processes() -> None:
    """Each the one that the fewest others use; it outlives them."""
    settings = {**STDIO, "env": {"A": "pool"}, "shared": 2}

    async def pid(server: Opened) -> str:
        return (await server.text("tally")).rpartition(" ")[2]

    async with opened(**settings) as one:
        async with opened(**settings) as two, opened(**settings) as three:
            pids = [await pid(each) for each in (one, two, three)]
            assert len(set(pids)) == 2
            assert pids[0] != pids[1]
        async with opened(**settings) as four, opened(**settings) as five:
            assert {await pid(four), await pid(five)} <= set(pids)
            assert await pid(four) == pids[1], "the one that no episode uses"
    async with opened(**settings) as six:
        assert await pid(six) in pids


async def test_the_server_of_an_episode_gets_data_of_its_task() -> None:
    """A task without the data is the user's error."""
    tool = Mcp(McpSettings.model_validate({**STDIO, "env": {"SHELF": "the {data.shelf}"}}))
    await tool.open(Task.of("t", "?", shelf="upper"), None)
    assert await Opened(tool).text("variable", which="SHELF") == "the upper"
    await tool.close()
    with pytest.raises(TaskError, match=r"task t: the task has no 'data.shelf'\n.*its data has: book"):
        await tool.open(Task.of("t", "?", book="A"), None)


async def test_a_server_that_does_not_take_leave_is_left(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("agentrl.tools.builtin.mcp.connection.CLOSE_S", 0.2)
    farewells = asyncio.Event()

    async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if data.startswith(b"DELETE"):
                farewells.set()
                await asyncio.Event().wait()
            target.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        await asyncio.gather(forward(reader, to_there), forward(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened(url=f"http://127.0.0.1:{port}/mcp", timeout_s=300) as through:
        assert await through.text("add", a=1, b=1) == "2"
    assert farewells.is_set()
    server.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (script("raise SystemExit(7)"), "exit code 7"),
        (script("import signal; signal.pause()"), "no answer within {limit:g} s; it runs"),
        (script("while True: print('tea ' * 1000)"), "lines of its output were no messages, the first b'tea tea"),
        (script("while True: print('x' * 10_000, end='')"), "no answer within {limit:g} s"),
        (script("import sys; [sys.stderr.write('e' * 1000) for _ in iter(int, 1)]"), "its stderr ends: eeee"),
        (script("while True: print('{}')"), "no messages"),
        (script("print('[' * 1000000); import signal; signal.pause()"), "no answer within {limit:g} s"),
        ({"url": "http://127.0.0.1:9/mcp"}, "127.0.0.1:9"),
    ],
)
async def test_what_is_no_server_is_a_failure(settings: dict[str, Any], said: str) -> None:
    for limit in limits(1.0):  # the program must come to its deed
        with pytest.raises(ServerLost) as error:
            async with opened(**{**settings, "timeout_s": limit}):
                pass
        if said.format(limit=limit) in str(error.value):
            break


async def test_in_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools: list[Mcp] = []
    open_ = Mcp.open

    async def opens(self: Mcp, *args: Any) -> None:
        tools.append(self)
        await open_(self, *args)

    monkeypatch.setattr(Mcp, "open", opens)

    def plays(task: Any, rng: Any) -> Any:
        yield Say(calls=[("add", {"a": 1, "b": 1}), ("fail", {})])
        tools[-1].timeout_s = 0.5
        yield Say(calls=[("hang", {})])
        yield Say(calls=[("picture", {})])
        yield Say("bye")

    def breaks(task: Any, rng: Any) -> Any:
        yield Say(calls=[("die", {})])

    settings = {"use": "mcp", **STDIO}
    parts = make_parts(tmp_path, tools=[settings], limits={"backoff_s": 0.0, "retries": 1})
    episode = await play_one(make_context(parts, plays))
    outcomes = [call.outcome for turn in episode.turns for call in turn.calls]
    assert (episode.status, outcomes[:3]) == ("done", ["ok", "error", "timeout"])
    assert {tool["function"]["name"] for tool in episode.tools or []} >= {"add", "picture"}
    failures: list[dict[str, Any]] = []
    (broken,) = await collect(make_context(parts, breaks), specs(1), failures=failures)
    assert (broken.status, broken.stop) == ("truncated", "tool_broken")
    assert "exit code 3" in failures[0]["message"]


def test_settings_are_checked_with_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"command": ["true"], "url": "http://x.test"}
    for wrong in ({}, both, {"command": []}, {"url": "x.test"}, {**STDIO, "headers": {"a": "b"}}, {"tools": 1}):
        with pytest.raises(RecipeError):
            make_parts(tmp_path, tools=[{"use": "mcp", **wrong}])
    with pytest.raises(RecipeError, match="there is no program 'no-such-program'"):
        make_parts(tmp_path, tools=[{"use": "mcp", "command": ["no-such-program"]}])
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'agentrl-framework\[mcp\]'"):
        make_parts(tmp_path, tools=[{"use": "mcp", **STDIO}])


async def test_an_agent_that_ends_its_server_again_has_a_reward(tmp_path: Path) -> None:
    code = begins(9).replace('if asked["params"]["name"]', 'if os._exit(5) or asked["params"]["name"]')

    def plays(task: Any, rng: Any) -> Any:
        yield Say(calls=[("add", {})])

    parts = make_parts(
        tmp_path, tools=[{"use": "mcp", **script(code, timeout_s=300)}],
        rewards={"found": "tests.rollouts.world:found"}, limits={"backoff_s": 0.0, "retries": 3},
    )  # fmt: skip
    failures: list[dict[str, Any]] = []
    (episode,) = await collect(make_context(parts, plays), specs(1), failures=failures)
    assert (episode.status, episode.stop, episode.attempt) == ("truncated", "tool_broken", 1)
    assert episode.reward == 0.0
    assert "exit code 5" in failures[0]["message"]


async def tally_says(env: Mcp) -> float:
    return float((await env.ask("tally")).partition(" ")[0])


async def test_a_reward_asks_the_server_also_for_a_tool_that_the_model_is_not_offered(tmp_path: Path) -> None:
    rewards = {"tally": f"{__name__}:tally_says"}
    tools = [{"use": "mcp", **STDIO, "exclude": ["tally"], "prefix": "shop_"}]
    parts = make_parts(tmp_path, tools=tools, rewards=rewards)
    episode = await play_one(make_context(parts, says_bye))
    assert (episode.status, episode.components, episode.reward) == ("done", {"tally": 1.0}, 1.0)


async def asks_fail(env: Mcp) -> float:
    return float(await env.ask("fail"))


async def asks_hang(env: Mcp) -> float:
    env.timeout_s = 0.5
    return float(await env.ask("hang"))


async def asks_unknown(env: Mcp) -> float:
    return float(await env.ask("no_such_tool"))


async def asks_wrongly(env: Mcp) -> float:
    return float(await env.ask("add", a="one"))


@pytest.mark.parametrize(
    ("asks", "said"),
    [(asks_fail, "fail: Error executing tool fail: the shop is closed"), (asks_hang, "hang: no answer within 0.5 s")],
)
async def test_a_state_that_the_server_cannot_tell_is_worth_0(asks: Any, said: str, tmp_path: Path) -> None:
    """The agent may have made it so: the episode must not be void."""
    parts = make_parts(tmp_path, tools=[{"use": "mcp", **STDIO}], rewards={"left": f"{__name__}:{asks.__name__}"})
    episode = await play_one(make_context(parts, says_bye))
    assert (episode.status, episode.reward, episode.notes["left"]) == ("done", 0.0, said)


@pytest.mark.parametrize(
    ("asks", "more", "said"),
    [
        (asks_unknown, {}, "the server has no tool 'no_such_tool', but add, "),
        (asks_wrongly, {}, "add: .*a.* integer"),
        (asks_fail, {"shared": True, "env": {"A": "asked"}}, "a shared server has no state of one episode"),
    ],
)
async def test_a_wrong_question_is_a_bug_of_the_reward(asks: Any, more: Any, said: str, tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[{"use": "mcp", **STDIO, **more}], rewards={"a": f"{__name__}:{asks.__name__}"})
    episode = await play_one(make_context(parts, says_bye))
    assert episode.error is not None
    assert (episode.status, episode.error.stage) == ("user_error", "score")
    assert re.search(said, episode.error.message)


def says_bye(task: Any, rng: Any) -> Any:
    yield Say("bye")


async def adds_twice_at_once(env: Mcp) -> float:
    env.timeout_s = 0.5
    return float(sum(map(float, await asyncio.gather(env.ask("add"), env.ask("add")))))


@pytest.mark.parametrize("deed", ["os._exit(5)", "os.kill(os.getpid(), 19)"], ids=["ends", "stops"])
async def test_an_agent_that_ends_its_server_before_the_reward_asks_it_gets_0_the_second_time(
    deed: str, tmp_path: Path
) -> None:
    """Ending it once may be an accident. Ending it again must not make the episode void."""
    code = begins(9).replace(
        'result = {"content"', f'listed["tools/call"] > 1 and {deed}\n        result = {{"content"'
    )
    parts = make_parts(
        tmp_path, tools=[{"use": "mcp", **script(code, timeout_s=300)}],
        rewards={"tally": f"{__name__}:adds_twice_at_once"}, limits={"backoff_s": 0.0, "retries": 3},
    )  # fmt: skip
    failures: list[dict[str, Any]] = []

    def plays(task: Any, rng: Any) -> Any:
        yield Say(calls=[("add", {})])
        yield Say("bye")

    (episode,) = await collect(make_context(parts, plays), specs(1), failures=failures)
    assert (episode.status, episode.attempt, episode.components) == ("done", 1, {"tally": 0.0})
    assert [(each["stage"], each["final"]) for each in failures] == [("score", False)]


async def test_an_episode_has_copies_of_the_files_in_a_folder_that_is_removed(tmp_path: Path) -> None:
    (tmp_path / "shops" / "tea").mkdir(parents=True)
    (tmp_path / "blob").write_text("3")
    (tmp_path / "blob").chmod(0o444)
    (tmp_path / "shops" / "tea" / "stock").symlink_to("../../blob")
    (tmp_path / "shops" / "tea" / "gone").symlink_to("nowhere")
    settings = {**STDIO, "env": {"AT": "{folder}"}, "files": {"of/shop": str(tmp_path / "shops" / "{data.shop}")}}
    tool = Mcp(McpSettings.model_validate(settings))
    await tool.open(Task.of("t", "?", shop="tea"), None)
    copied = Path(await Opened(tool).text("variable", which="AT"))
    assert (copied / "of" / "shop" / "stock").stat().st_mode & 0o200, "a copy can be written"
    (copied / "of" / "shop" / "stock").write_text("2")
    await tool.close()
    assert (tmp_path / "blob").read_text() == "3", "the original stays as it was"
    assert not copied.exists()
    with pytest.raises(TaskError, match=r"task t: mcp: files: there is no .*shops/milk\n.*shops has: tea"):
        Mcp(McpSettings.model_validate(settings)).check_task(Task.of("t", "?", shop="milk"))


FREEZES = begins(9).replace('if asked["params"]["name"]', "if os.kill(os.getpid(), 19) or asked['params']['name']")
"""A server that stops when it is called."""

WRAPPED = ["sh", "-c", f'{sys.executable} -c "$0"; true']


@pytest.mark.parametrize("command", [[sys.executable, "-c"], WRAPPED], ids=["itself", "below a shell"])
async def test_a_server_that_is_frozen_is_told_from_one_that_is_slow(command: list[str]) -> None:
    async with opened(command=[*command, FREEZES], timeout_s=300) as server:
        asked = asyncio.create_task(server.call("add"))
        await server.tool.check_answers()
        await until_async(lambda: stopped(server))
        asked.cancel()  # out of time
        await asyncio.wait([asked])
        with pytest.raises(ServerEnded, match="its process is stopped"):
            await server.tool.check_answers()
        with pytest.raises(ServerLost):
            await server.call("add")


def stopped(server: Opened) -> bool:
    assert server.tool._connection is not None
    assert server.tool._connection._server is not None
    return server.tool._connection._server.stopped()


HELPER = "import subprocess, os; P = subprocess.Popen(['sleep', '9'], stdout=subprocess.DEVNULL); os.kill(P.pid, 19)\n"


async def test_a_server_whose_helper_is_stopped_is_not_frozen() -> None:
    async with opened(**script(HELPER + begins(9), timeout_s=300)) as server:
        assert await server.text("add") == "2"
        assert not stopped(server)


async def test_who_shares_a_server_with_others_is_not_blamed_for_its_end() -> None:
    settings = script(FREEZES, timeout_s=300, shared=True, env={"A": "blamed"})
    async with opened(**settings) as one, opened(**settings) as two:
        asked = [asyncio.create_task(each.call("add")) for each in (one, two)]
        await until_async(lambda: stopped(one))
        asked[0].cancel()
        await asyncio.wait(asked[:1])
        with pytest.raises(ServerLost) as ended:
            await one.tool.check_answers()
        assert not isinstance(ended.value, ServerEnded)
        with pytest.raises(ServerLost):
            await asked[1]


async def test_a_server_of_others_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.tools.builtin.mcp.connection.PING_S", 0.5)
    with served() as (process, url):
        async with opened(url=url, timeout_s=300) as server:
            stop(process.pid)
            with pytest.raises(ServerEnded, match="nor, within 0.5 s, a ping"):
                await server.tool.check_answers()
            os.kill(process.pid, signal.SIGCONT)
        monkeypatch.setattr("agentrl.tools.builtin.mcp.connection.PING_S", 300)
        async with opened(url=url, timeout_s=300) as server:
            await server.tool.check_answers()
            assert await server.text("add", a=1, b=1) == "2"


HOST = """
import asyncio, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background of a shell ignore it
from agentrl.tools.builtin.mcp.connection import connect
from agentrl.tools.builtin.mcp.settings import McpSettings
async def main():
    connection = await connect(McpSettings(command=(sys.executable, "-c", sys.argv[1]), timeout_s=300))
    print((await connection.call("pid", {})).content[0].text, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_children_end_with_the_host(how: signal.Signals) -> None:
    with running_program([sys.executable, "-c", HOST, begins(9)]) as host:
        assert host.stdout is not None
        child = int(host.stdout.readline())
        stop(child)  # it cannot end by itself
        host.send_signal(how)
        host.wait()
    until(lambda: not Path(f"/proc/{child}").exists())
