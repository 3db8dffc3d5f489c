"""verifiers 0.4.0, with a harness that runs in its process: no program, container or MCP server is started.

`eval` relays chat completions, `train` renders to token ids (its TrainClient with the `qwen3` renderer) and records ids
and log-probabilities. Both write its own `traces.jsonl`. Runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.runtimes import ProgramResult

from benchmarks.peers.lookup import ANSWER, SYSTEM, TOOL_NAME, TOOL_TEXT, Job, Meter, bytes_in, observation, question

__all__ = ["LookupHarness", "LookupTaskset"]

PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
TOOLS = [{"type": "function", "function": {"name": TOOL_NAME, "description": TOOL_TEXT, "parameters": PARAMETERS}}]

sessions: dict[str, aiohttp.ClientSession] = {}


class LookupTask(vf.Task[vf.TaskData]):
    """One question; right if the last message has the answer."""

    @vf.reward(weight=1.0)
    async def right(self, trace: Any) -> float:
        """1 if the answer is right."""
        return float(ANSWER in (trace.nodes[-1].message.content or ""))


class LookupTasksetConfig(vf.TasksetConfig):
    """How many tasks."""

    tasks: int = 1


class LookupTaskset(vf.Taskset[LookupTask, LookupTasksetConfig]):
    """The tasks of the benchmark."""

    def load(self) -> Iterator[LookupTask]:
        """All tasks, in order."""
        for number in range(self.config.tasks):
            yield LookupTask(vf.TaskData(prompt=question(number), system_prompt=SYSTEM))


class LookupHarness(vf.Harness[vf.HarnessConfig]):
    """The agent loop, in this process, over one shared aiohttp session."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Plays one episode."""
        if "shared" not in sessions:
            sessions["shared"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        while True:
            body = {"model": ctx.model, "messages": messages, "tools": TOOLS}
            async with sessions["shared"].post(f"{endpoint}/chat/completions", json=body, headers=headers) as reply:
                if reply.status != 200:
                    return ProgramResult(1, "", f"{reply.status}: {await reply.text()}")
                message = (await reply.json())["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return ProgramResult(0, "", "")
            for call in message["tool_calls"]:
                key = json.loads(call["function"]["arguments"])["key"]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": observation(key)})


def config(job: Job, how: str, episodes: int, name: str) -> EvalConfig:
    """The configuration of a run."""
    client: dict[str, Any] = {"type": how, "base_url": f"{job.url}/v1", "api_key_var": "NONE"}
    if how == "train":
        client |= {"renderer_model_name": job.tokenizer, "renderer": {"name": "qwen3"}}
    return EvalConfig.model_validate(
        {
            "env": {
                "taskset": {"id": "lookup_world", "tasks": episodes},
                "agent": {"harness": {"id": "lookup_world"}, "runtime": {"type": "subprocess"}},
            },
            "model": "mock",
            "client": client,
            "max_concurrent": job.concurrency,
            "output_dir": job.out,
            "run": {"name": name},
            "rich": None,
            "push": False,
        }
    )


async def main(job: Job, how: str) -> None:
    """Warms up, then measures."""
    await run_eval(config(job, how, job.warmup, "warm-up"))
    measured = config(job, how, job.episodes, "measured")
    meter = Meter()
    meter.start()
    episodes = await run_eval(measured)
    right = sum(trace.reward == 1.0 for episode in episodes for trace in episode.traces)
    meter.report(right=right, stored=bytes_in(f"{job.out}/measured"))
    await sessions["shared"].close()


if __name__ == "__main__":
    # verifiers imports task sets and harnesses by the name of a top-level module: that is this file.
    sys.modules["lookup_world"] = sys.modules[__name__]
    os.environ["NONE"] = "none"
    logging.disable(logging.WARNING)
    how = sys.argv.pop(1)
    asyncio.run(main(Job.from_command_line(), how))
