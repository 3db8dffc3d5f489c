"""The SWE-ReX arm: `swerex_arm.py AT_ONCE`, in an environment of its own. Reads words, prints milliseconds as JSON."""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest, ReadFileRequest, WriteFileRequest
from swerex.runtime.remote import RemoteRuntime

TOKEN = "benchmark"
TEXT = "x" * (64 << 10)
PATH = f"{tempfile.gettempdir()}/swerex-blob"
PROMPT = r">>> "
AT_ONCE = int(sys.argv[1])


class World:
    server = None
    runtime = None

    async def create(self):
        """The server as a process, ready to run commands: what starting its container does, without the container."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        argv = [sys.executable, "-m", "swerex", "--host", "127.0.0.1", "--port", str(port), "--auth-token", TOKEN]
        self.server = subprocess.Popen(  # noqa: ASYNC220 - as short as it gets
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.runtime = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=TOKEN, timeout=30)
        while not (await self.runtime.is_alive(timeout=1)).is_alive:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await self.runtime.create_session(CreateBashSessionRequest(startup_timeout=10))

    async def end(self):
        if self.server is not None:
            await self.runtime.close()
            self.server.terminate()
            self.server.wait()
            self.server = None

    async def exec(self, *argv):
        done = await self.runtime.execute(Command(command=list(argv) or ["true"], timeout=60))
        assert done.exit_code == 0

    async def shell(self):
        await self.runtime.run_in_session(BashAction(command="true", timeout=60))

    async def file(self):
        await self.runtime.write_file(WriteFileRequest(path=PATH, content=TEXT))
        assert (await self.runtime.read_file(ReadFileRequest(path=PATH))).content == TEXT

    async def many(self):
        await asyncio.gather(*(self.exec() for _ in range(AT_ONCE)))

    async def sleeps(self):
        await asyncio.gather(*(self.exec("sleep", "1") for _ in range(2)))

    async def open_python(self):
        """An interactive Python in a session of its own: its way to keep variables."""
        await self.runtime.create_session(CreateBashSessionRequest(session="python", startup_timeout=10))
        await self.cell("python3 -q")

    async def cell(self, code="x = 1"):
        action = BashAction(command=code, session="python", is_interactive_command=True, expect=[PROMPT], timeout=20)
        await self.runtime.run_in_session(action)


async def main():
    world = World()
    has_python = False
    does = {
        "create": world.create,
        "first exec": world.exec,
        "exec": world.exec,
        "shell": world.shell,
        "cell": world.cell,
        "file": world.file,
        "execs at once": world.many,
        "two sleeps": world.sleeps,
    }
    try:
        for line in sys.stdin:
            what = line.strip()
            if what == "create":
                await world.end()
                has_python = False
            if what == "cell" and not has_python:
                await world.open_python()
                has_python = True
            took = None
            if what in does:
                started = time.perf_counter()
                await does[what]()
                took = (time.perf_counter() - started) * 1e3
            print(json.dumps(took), flush=True)
    finally:
        await world.end()


asyncio.run(main())
