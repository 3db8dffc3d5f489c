"""The `python` tool: a Python kernel in the sandbox with variables that persist between calls."""

from __future__ import annotations

from agentrl.tools.base import Tool, own, tool
from agentrl.tools.builtin.shell import GRACE_S
from agentrl.tools.words import Word
from agentrl.types.sandbox import PythonKernel, Sandbox
from agentrl.types.task import Task


class Python(Tool):
    """Python kernel of the episode.

    Args:
        timeout_s: timeout of one call.
        output_limit: maximum bytes of printed output shown to the model per call: head and tail.
    """

    needs_sandbox = True

    def __init__(self, timeout_s: float = 60.0, output_limit: int = 16_000) -> None:
        self.cell_s = timeout_s
        self.timeout_s = timeout_s + GRACE_S
        self.output_limit = output_limit

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Opens a kernel."""
        self.kernel: PythonKernel = await own(sandbox).python("python-tool")

    @tool
    async def python(self, code: Word) -> str:
        """Run Python code. Variables are kept from call to call; the value of a last expression is shown.

        Args:
            code: one or more statements.
        """
        result = await self.kernel.run(code, timeout_s=self.cell_s, output_limit=self.output_limit)
        ending = {
            "timeout": f"[timed out after {self.cell_s:g} s and was interrupted]",
            "oom": "[killed: out of memory]",
            "output_limit": "[ended: far too much output]",
        }.get(result.outcome, "")
        return "\n".join(part for part in (result.text, ending) if part)
