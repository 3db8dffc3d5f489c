"""Conformance checks of sandbox backends, run against a real one: the same for every backend.

`agentrl sandbox check BACKEND` runs them; so can a plug-in's own tests (`checks()` and `run_check`). A check may be
skipped only if the backend's capabilities do not claim what it proves.
"""

from __future__ import annotations

from agentrl.sandbox.conformance.arena import Arena, Broken, expect
from agentrl.sandbox.conformance.check import Check, CheckResult, checks, run_check

__all__ = ["Arena", "Broken", "Check", "CheckResult", "checks", "expect", "run_check"]
