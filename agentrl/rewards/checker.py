"""Helper processes of verifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.rewards.grading import CORES, RanOut, budget, place
from agentrl.sandbox.helper import Helper, HelperRaised, Starved, TooMuch


class Checker(Helper):
    """Helper whose processes run in the slots of verifiers (`grading.place`). Waiting for a slot is not counted."""

    def __init__(self, module: str, memory_mb: int = 2048) -> None:
        super().__init__(module, memory_mb, CORES)

    async def ask(self, function: Callable[..., Any], *arguments: Any, cpu_s: float, tries: int = 1) -> Any:
        """Calls a function of the module. Returns its result.

        Raises:
            TooMuch: the call exceeded the limit of time or memory, or raised.
            Starved: the machine did not give it its processor time, and this is the final run of the verifier.
            RanOut: the same, in a run that is not the final one.
            AgentRLError: the process cannot be started.
        """
        async with place():
            try:
                return await super().ask(function, *arguments, cpu_s=cpu_s, tries=tries)
            except Starved as problem:
                if budget().final:
                    raise
                raise RanOut(problem.message) from None
            except HelperRaised as problem:
                raise TooMuch(str(problem)) from None
