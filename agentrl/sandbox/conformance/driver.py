"""Driver that the suite kills: makes a busy sandbox, prints `ready`, and waits.

Usage: `python -m agentrl.sandbox.conformance.driver BACKEND SPEC_AS_JSON SECONDS_TO_SLEEP`
"""

from __future__ import annotations

import asyncio
import sys

from agentrl.sandbox.registry import open_backend
from agentrl.types.sandbox import SandboxSpec


async def _drive(address: str, spec: SandboxSpec, nap: str) -> None:
    backend = open_backend(address)
    backend.preflight(spec)
    sandbox = await backend.create(spec, label="conformance driver")
    await (await sandbox.session()).run(f"setsid nohup sleep {nap} >/dev/null 2>&1 &")
    await sandbox.spawn(f"setsid sleep {nap} & sleep {nap}")
    await (await sandbox.python()).run("x = bytearray(1 << 20)")
    print("ready", flush=True)
    await sandbox.exec(["sleep", nap], timeout_s=600)


if __name__ == "__main__":
    asyncio.run(_drive(sys.argv[1], SandboxSpec.model_validate_json(sys.argv[2]), sys.argv[3]))
