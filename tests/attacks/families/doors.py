"""Things that come in where a contract holds: requests, completions of engines, replies of models, verdicts."""

from __future__ import annotations

import asyncio
import math
import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from agentrl.chat.formats.registry import FORMATS, parser_named
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.integrations.harbor.verifier import MOST
from agentrl.integrations.harbor.verifier import _read as verdict
from agentrl.types.engine import Sampling, sample
from agentrl.types.episode import Usage, VersionSpan
from agentrl.types.errors import DeadPolicy, EngineError
from tests.attacks.cases import DRIVER, Broken, Case, Family
from tests.attacks.families import words
from tests.chat.test_parsers import NAMES, READ, TOOLS
from tests.proxy.test_door import PATHS, bodies, posted, wholes
from tests.proxy.world import Parrot, connected
from tests.types.test_completions import GOOD, LIES, Gives


class Doors(Family):
    """What comes in at one door of the driver, one after the other."""

    places = (DRIVER,)
    batch = 200

    @abstractmethod
    async def knock(self, case: Case) -> str:
        """What is wrong with how the door took it; "": nothing."""

    def play(self, cases: Sequence[Case], folder: Path) -> Iterator[Broken]:
        """Knocks."""
        yield from asyncio.run(self._all(cases))

    async def _all(self, cases: Sequence[Case]) -> list[Broken]:
        found = []
        for case in cases:
            try:
                wrong = await self.knock(case)
            except Exception as error:  # none is the door's own
                wrong = f"{type(error).__name__}: {error}"
            found += [Broken((case.id,), wrong)] if wrong else []
            await asyncio.sleep(0)
        return found


class Requests(Doors):
    """Requests of programs to the proxy: none is the proxy's own fault, and a proper one is answered after each."""

    name = "requests"
    batch = 60

    def listed(self) -> Sequence[str]:
        return [f"{path} {n}" for path, found in _BODIES.items() for n in range(0, len(found), 5)]

    async def _all(self, cases: Sequence[Case]) -> list[Broken]:
        found: list[Broken] = []
        async for client in connected(Answers(), ByteTokenizer()):
            self.client = client
            found = await super()._all(cases)
        return found

    async def knock(self, case: Case) -> str:
        rng, headers = case.random(), {}
        if case.drawn:
            path = rng.choice(PATHS)
            whole = wholes()[path]
            key = rng.choice([*whole, "x"])
            whole[key] = words.value(rng, 4)
            body: Any = words.broken_json(rng, whole).encode("utf-8", "surrogatepass") if rng.random() < 0.5 else whole
            name = rng.choice(("s", "s", "..", "%2e%2e%2f", "a b", "\u00e9", "x" * 500, "%00", "%1b[2J", "end"))
            path = rng.choice(
                (f"/s/{name}{path}", path, f"/s/{name}/end", f"/s/{name}", "/s//v1/messages", "/v1/models")
            )
            headers = {
                "Content_Type": rng.choice(
                    ("application/json", "text/plain", "multipart/form-data; boundary=x", "\u00e9")
                )
            }
            headers |= {"X_Session_Id": rng.choice(("a", "../b", "x" * 3000))} if rng.random() < 0.2 else {}
        else:
            path, _, number = case.name.partition(" ")
            path, body = f"/s/s{path}", _BODIES[path][int(number)]
        status, said = await posted(self.client, path, body, **headers)
        if not 200 <= status < 500:
            return f"status {status}: {said}"
        status, said = await posted(
            self.client, "/s/honest/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
        )
        return "" if status == 200 else f"a proper request got {status}: {said}"


class Answers(Parrot):
    """An engine that says the same for ever."""

    async def generate(self, *given: Any) -> Any:
        self.texts = ["hi"]
        return await super().generate(*given)


_BODIES = {path: bodies(whole) for path, whole in wholes().items()}


class Completions(Doors):
    """What an engine gives: it is a completion, or a failure of the engine."""

    name = "completions"

    def listed(self) -> Sequence[str]:
        return [f"lie {n}" for n in range(len(LIES))]

    async def knock(self, case: Case) -> str:
        given = self._drawn(case.random()) if case.drawn else LIES[int(case.name.removeprefix("lie "))][0]
        engine: Any = Gives(given)
        try:
            taken = await sample(engine, [0], Sampling(), "s")
        except (EngineError, DeadPolicy):
            return ""
        ids, logprobs = taken.token_ids, taken.logprobs
        whole = all(type(id) is int and 0 <= id < 1 << 31 for id in ids) and len(ids) == len(logprobs)
        likely = all(isinstance(p, int | float) and math.isfinite(p) and p <= 0.0 for p in logprobs)
        spans = sum(span.end - span.start for span in taken.versions) == len(ids)
        return "" if case.drawn and whole and likely and spans else f"{taken} is taken"

    def _drawn(self, rng: random.Random) -> Any:
        many = rng.choice((0, 1, 3, 3, 3, 50))
        odd = (-1, 0, 1, 0.5, math.nan, math.inf, -math.inf, None, True, "x", 1 << 40, -1e308, [1], 10**400)
        drawn = {
            "token_ids": [rng.choice(odd) if rng.random() < 0.1 else rng.randrange(300) for _ in range(many)],
            "logprobs": [
                rng.choice(odd) if rng.random() < 0.1 else -rng.random()
                for _ in range(many + rng.choice((0, 0, 0, 1, -1)))
            ],
            "versions": [VersionSpan(rng.choice((0, 1, -1)), k, k + rng.choice((1, 1, 1, 0, 2))) for k in range(many)],
            "finish": rng.choice(("stop", "length", "stop", "error", None)),
            "usage": rng.choice(
                (None, None, Usage(rng.choice((1, -1)), 1, rng.choice((0.0, -1.0, math.nan))), words.value(rng))
            ),
        }
        changed = {name: value for name, value in drawn.items() if rng.random() < 0.7}
        return msgspec.structs.replace(GOOD, **changed) if rng.random() < 0.95 else words.value(rng)


class Replies(Doors):
    """What models write: every parser makes calls, faults and text of it, and never raises."""

    name = "replies"

    def listed(self) -> Sequence[str]:
        return [f"{format} {n}" for n, (format, _, _) in enumerate(READ)]

    async def knock(self, case: Case) -> str:
        rng = case.random()
        format = rng.choice([*FORMATS.built_in]) if case.drawn else case.name.split()[0]
        text = self._drawn(rng) if case.drawn else READ[int(case.name.split()[1])][1]
        reply = _PARSERS[format].parse(text, NAMES)
        if any(call.name not in NAMES for call in reply.calls):
            return f"{reply.calls} are taken for calls"
        return (
            "" if len(str([fault.message for fault in reply.errors])) < 20_000 else "its faults are longer than a page"
        )

    def _drawn(self, rng: random.Random) -> str:
        parts = []
        for _ in range(rng.choice((1, 3, 9))):
            known = rng.choice(READ)[1]
            at, to = sorted(rng.randrange(len(known) + 1) for _ in range(2))
            parts.append(
                rng.choice((known, known[at:to], known[:at] + known[to:], rng.choice(_MARKS), words.text(rng)[:5000]))
            )
        return "".join(parts) * rng.choice((1, 1, 1, 40))


_MARKS = (
    "<tool_call>", "</tool_call>", "<function=", "<parameter=", "</parameter>", "```", "```python\n", "<think>",
    "</think>", "<answer>", "</answer>", "[TOOL_CALLS]",
    "<|python_tag|>", "<|tool_call|>", "<|channel|>", "<|message|>", "<|call|>", "functions.", "{\"name\": \"look\"",
    ", \"arguments\": {", "}}", "[look(", ")]",
)  # fmt: skip
_PARSERS = {name: parser_named(name, TOOLS) for name in FORMATS.built_in}


class Numbers(Doors):
    """What a reward file holds: a number of a size that is believed, or no verdict."""

    name = "numbers"
    _SHAPES: ClassVar[Sequence[str]] = (
        "[" * 100_000,
        '{"reward":' * 5000,
        "9" * 5000,
        "1" * 400,
        "-" * 999 + "1",
        "1e400",
        "\0",
        "\ufeff1",
        "0x1p4",
        "1_0",
        "١",
    )

    def listed(self) -> Sequence[str]:
        return [f"{kind} {n}" for n in range(len(self._SHAPES)) for kind in ("json", "text")]

    async def knock(self, case: Case) -> str:
        rng = case.random()
        if case.drawn:
            whole = words.value(rng, 3) if rng.random() < 0.5 else {rng.choice(("reward", "a")): words.value(rng, 2)}
            said, kind = words.broken_json(rng, whole), rng.choice(("json", "text", "both"))
        else:
            kind, _, number = case.name.partition(" ")
            said = self._SHAPES[int(number)]
        try:
            found = verdict(said if kind != "text" else None, said if kind != "json" else None, "reward", "")
        except ValueError as error:
            return "" if len(str(error)) < 1000 else f"a note of {len(str(error))} characters"
        return (
            ""
            if kind != "both" and math.isfinite(found.value) and abs(found.value) <= MOST
            else f"{found.value} is believed"
        )
