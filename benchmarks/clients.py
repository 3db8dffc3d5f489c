"""CPU time of an engine's request, by HTTP client: `python -m benchmarks.clients [--requests 2000]`.

A server in a process of its own answers each POST at once, as a model's server does: so many token ids come, 256 token
ids with log-probabilities go back. Clients take turns in this process: aiohttp as the engines use it, httpx as it
comes, and httpx on our transport, which checks addresses and bounds bodies. What is reported is the least of the
rounds. While aiohttp takes at most half of httpx's time, it has its place. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import httpx2
import msgspec
from rich.console import Console
from rich.table import Table

from agentrl import http_client
from agentrl.engines.http import HttpClient
from benchmarks.harness import ROOT, Benchmark, Report, Row

AIOHTTP, HTTPX, OURS = "aiohttp", "httpx", "httpx, our transport"
CONCURRENCY = (1, 64)
SAMPLED = 256


class Asked(Row):
    """Figures of a client at a concurrency, per request."""

    client: str
    concurrency: int
    cpu_ms: float
    wall_ms: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Asked,
    kind="measure",
    beside="httpx 2, as it comes and on our transport",
    smoke={"requests": 40, "rounds": 1},
)

Post = Callable[[str, Any], Awaitable[Any]]


@asynccontextmanager
async def by_aiohttp() -> AsyncIterator[Post]:
    client = HttpClient(timeout_s=60.0)
    try:
        yield partial(client.post, kind=dict[str, Any])
    finally:
        await client.close()


@asynccontextmanager
async def by_httpx() -> AsyncIterator[Post]:
    async with httpx2.AsyncClient(
        timeout=60.0, trust_env=False, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    ) as client:
        yield partial(_posted, client)


@asynccontextmanager
async def by_our_transport() -> AsyncIterator[Post]:
    async with http_client("any") as client:
        yield partial(_posted, client)


async def _posted(client: httpx2.AsyncClient, url: str, body: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    response = await client.post(url, content=msgspec.json.encode(body), headers=headers)
    return msgspec.json.decode(response.content)


CLIENTS = {AIOHTTP: by_aiohttp, HTTPX: by_httpx, OURS: by_our_transport}


async def measured(client: str, concurrency: int, requests: int, url: str, body: Any) -> Asked:
    """A round of a client, after each of its connections was used once."""
    async with CLIENTS[client]() as post:

        async def some(waiting: Iterator[int]) -> None:
            for _ in waiting:
                assert len((await post(url, body))["token_ids"]) == SAMPLED

        await asyncio.gather(*(some(iter([0])) for _ in range(concurrency)))
        waiting = iter(range(requests))
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(some(waiting) for _ in range(concurrency)))
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    return Asked(client=client, concurrency=concurrency, cpu_ms=1e3 * cpu_s / requests, wall_ms=1e3 * wall_s / requests)


SERVER = """
import asyncio, sys
from aiohttp import web

REPLY = sys.stdin.buffer.readline()

async def answer(request):
    await request.read()
    return web.Response(body=REPLY, content_type="application/json")

async def main():
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/generate", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)

asyncio.run(main())
"""


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server of its own process, which ends with its stdin."""
    reply = {"token_ids": list(range(1000, 1000 + SAMPLED)), "logprobs": [-0.123456789] * SAMPLED}
    argv = [sys.executable, "-c", SERVER]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(reply) + b"\n")
        process.stdin.flush()
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/generate"
        finally:
            process.stdin.close()


def measure(given: argparse.Namespace, report: Report) -> None:
    """Lets the clients take turns, and compares the best round of each."""
    body = {"model": "mock", "token_ids": list(range(10_000, 10_000 + given.tokens))}
    best: dict[tuple[int, str], Asked] = {}
    report.plan(given.rounds * len(CONCURRENCY) * len(CLIENTS))
    with server() as url:
        for _ in range(given.rounds):
            for concurrency in CONCURRENCY:
                for client in CLIENTS:
                    row = asyncio.run(measured(client, concurrency, given.requests, url, body))
                    known = best.setdefault((concurrency, client), row)
                    best[concurrency, client] = min(known, row, key=lambda each: each.cpu_ms)
                    report.done(f"{client} at {concurrency}")
    table = Table("requests at a time", "client", "CPU ms", "wall ms")
    for (concurrency, client), row in best.items():
        report.row(row)
        table.add_row(str(concurrency), client, f"{row.cpu_ms:.3f}", f"{row.wall_ms:.3f}")
        if client != AIOHTTP:
            ours = AIOHTTP, best[concurrency, AIOHTTP].cpu_ms
            report.ratio(f"CPU ms of a request, {concurrency} at a time", ours, (client, row.cpu_ms))
            report.budget(f"aiohttp beside {client}, {concurrency} at a time", ours[1] / row.cpu_ms, at_most=0.5)
    Console(stderr=True).print(table)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--requests", type=int, default=2000, help="of a round, at each concurrency")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4000, help="of a prompt")
    return BENCHMARK.run(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
