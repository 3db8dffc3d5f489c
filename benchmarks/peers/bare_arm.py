"""The floor: an aiohttp loop that posts what must be posted and reads what comes back. No template, tool or store."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from benchmarks.peers.lookup import Job, Meter, turn_end_of


async def main(job: Job) -> None:
    """Every prompt is the one before, the reply to it, and 100 tokens of observation."""
    opening, observed = list(range(1000, 1200)), list(range(1000, 1100))
    turn_end = turn_end_of(job.tokenizer)

    async def episode(session: aiohttp.ClientSession) -> None:
        ids = [turn_end, *opening, turn_end]
        for _ in range(job.turns):
            body = msgspec.json.encode({"model": "mock", "token_ids": ids, "sampling_params": {"max_tokens": 256}})
            async with session.post(f"{job.url}/inference/v1/generate", data=body) as response:
                choice = msgspec.json.decode(await response.read())["choices"][0]
            ids += [*choice["token_ids"], *observed, turn_end]

    async def many(count: int, session: aiohttp.ClientSession) -> None:
        waiting = iter(range(count))

        async def worker() -> None:
            for _ in waiting:
                await episode(session)

        await asyncio.gather(*(worker() for _ in range(min(count, job.concurrency))))

    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await many(job.warmup, session)
        meter = Meter()
        meter.start()
        await many(job.episodes, session)
        meter.report(right=job.episodes, stored=0)


if __name__ == "__main__":
    asyncio.run(main(Job.from_command_line()))
