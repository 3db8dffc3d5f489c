"""Plays another framework's environment with the policy served by agentrl; runs in that framework's Python.

    python guest.py tasks KIND SPEC [N]        prints a JSON object per task, of the first N: id, instruction, data
    python guest.py play KIND SPEC INDEX       plays task INDEX at AGENTRL_BASE_URL and returns its reward

SPEC is a JSON object, KIND names a module `of_KIND` in this folder. Imports nothing of agentrl.
Exit code 75: an external failure, a retry may succeed; 64: the environment is unusable.
Messages for the user are on stderr after a form feed, because frameworks print there too.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import itertools
import json
import os
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

AGAIN, UNUSABLE = 75, 64

Spec = dict[str, Any]
"""Settings of the environment, by kind: the docstring of each module names them."""
Row = dict[str, Any]
"""Task as it is listed: `id`, `instruction`, `data`; `declares`: True if the environment has tools of its own."""
Message = dict[str, Any]
Rewards = dict[str, float]
Played = tuple[Rewards, str]
"""Rewards of an episode, and the policy's last text."""


class Unusable(Exception):
    """The environment cannot be used as specified; the message gives the remedy."""


class Away(Exception):
    """An external server or service is unavailable."""


class Model:
    """Policy behind chat completions. A reply is a message with `content` and optional `tool_calls`.

    Does not use `OPENAI_BASE_URL` and `OPENAI_API_KEY`, which the environment uses for other models, such as a judge.
    """

    def __init__(self) -> None:
        self.url, self.key = os.environ["AGENTRL_BASE_URL"], os.environ["AGENTRL_API_KEY"]
        self.name = os.environ.get("AGENTRL_MODEL", "policy")

    def reply(
        self, messages: list[Message], tools: list[Message] | None = None, rewards: Rewards | None = None
    ) -> Message | None:
        """Returns the next message; None if a limit ended the episode.

        `rewards`: rewards so far, used if a limit ends the episode.
        """
        body: dict[str, Any] = {"model": self.name, "messages": messages, **({"tools": tools} if tools else {})}
        if rewards is not None:
            body["agentrl_rewards"] = rewards
        try:
            answer: Message = self.post(f"{self.url}/chat/completions", body)["choices"][0]["message"]
        except urllib.error.HTTPError:
            return None
        return answer

    def end(self, rewards: Rewards, answer: str | None = None) -> None:
        """Sends the rewards of the episode."""
        self.post(f"{os.environ['AGENTRL_URL']}/end", {"answer": answer or "", "rewards": rewards})

    def post(self, url: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request) as answer:
            return json.loads(answer.read() or b"{}")


def share(*modules: str) -> None:
    """Imports modules of a framework when a module `of_KIND` is imported: forks share them.

    Passes over those that this version lacks. What an episode needs of them fails there.
    """
    for each in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(each)


def calls_of(message: Message) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the tool calls of a message: (id, name, arguments)."""
    for call in message.get("tool_calls") or []:
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            arguments = {}
        yield call["id"], call["function"]["name"], arguments if isinstance(arguments, dict) else {}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Inlines the definitions of a JSON schema, so that short signatures show enum choices."""
    defined = {f"#/$defs/{name}": each for name, each in schema.get("$defs", {}).items()}

    def put(value: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [put(each, inside) for each in value]
        if not isinstance(value, dict):
            return value
        name = value.get("$ref")
        if name in inside:  # recursive
            raise RecursionError(name)
        if name in defined:
            return put({**defined[name], **{k: v for k, v in value.items() if k != "$ref"}}, (*inside, name))
        return {k: put(v, inside) for k, v in value.items() if k != "$defs"}

    try:
        found: dict[str, Any] = put(schema, ()) if defined else schema
    except RecursionError:
        return schema
    return found


def text_of(value: object) -> str:
    """Formats a value for the model: text unchanged, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Converts arrays to lists, enums to their values, others to text."""
    if isinstance(value, enum.Enum):
        return value.value
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main(what: str, kind: str, given: str, number: str | None = None) -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of packages must not mix with tasks
    spec: Spec = json.loads(given)
    path = spec.pop("path", [])
    sys.path.extend(path)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*path, os.environ.get("PYTHONPATH")]))  # for child servers
    try:
        module = importlib.import_module(f"of_{kind}")
        if what == "tasks":
            for task in itertools.islice(module.tasks(spec), None if number is None else int(number)):
                out.write(json.dumps(task, default=str) + "\n")
            out.flush()
            return 0
        model = Model()
        rewards, answer = module.play(spec, int(number or 0), model)
        model.end(rewards, answer)
        return 0
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        tell(f"{package} is not installed there: {sys.executable} -m pip install {PIP.get(package, package)}")
        return UNUSABLE
    except Unusable as error:
        tell(error)
        return UNUSABLE
    except (Away, ConnectionError) as error:
        tell(f"{type(error).__name__}: {error}")
        return AGAIN
    except Exception as error:
        tell(f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}")
        return 1


def tell(text: object) -> None:
    """Prints a message for the user."""
    print(f"\f{text}", file=sys.stderr)


PIP = {"inspect_ai": "inspect-ai openai", "inspect_evals": "inspect-evals", "ors": "ors-sdk"}

if __name__ == "__main__":
    import guest  # under its module name, so that there is only one class `Away`

    sys.exit(guest.main(*sys.argv[1:]))
