"""Plays another framework's environment with the policy served by agentrl; runs in that framework's Python.

    python guest.py tasks KIND SPEC [N]        prints a JSON object per task, of the first N: id, instruction, data
    python guest.py play KIND SPEC INDEX       plays task INDEX at AGENTRL_BASE_URL and returns its reward

SPEC is a JSON object, KIND names a module `of_KIND` in this folder. Imports nothing of agentrl.
Exit code 75: an external failure, a retry may succeed; 64: the environment is unusable.
Messages for the user are on stderr after a form feed, because frameworks print there too.
"""

import enum
import importlib
import itertools
import json
import os
import sys
import traceback
import urllib.error
import urllib.request

AGAIN, UNUSABLE = 75, 64


class Unusable(Exception):
    """The environment cannot be used as specified; the message gives the remedy."""


class Away(Exception):
    """An external server or service is unavailable."""


class Model:
    """Policy behind chat completions. A reply is a message with `content` and optional `tool_calls`.

    Does not use `OPENAI_BASE_URL` and `OPENAI_API_KEY`, which the environment uses for other models, such as a judge.
    """

    def __init__(self):
        self.url, self.key = os.environ["AGENTRL_BASE_URL"], os.environ["AGENTRL_API_KEY"]
        self.name = os.environ.get("AGENTRL_MODEL", "policy")

    def reply(self, messages, tools=None, rewards=None):
        """Returns the next message; None if a limit ended the episode.

        `rewards`: rewards so far, used if a limit ends the episode.
        """
        body = {"model": self.name, "messages": messages, **({"tools": tools} if tools else {})}
        if rewards is not None:
            body["agentrl_rewards"] = rewards
        try:
            return self.post(f"{self.url}/chat/completions", body)["choices"][0]["message"]
        except urllib.error.HTTPError:
            return None

    def end(self, rewards, answer=None):
        """Sends the rewards of the episode."""
        self.post(f"{os.environ['AGENTRL_URL']}/end", {"answer": answer or "", "rewards": rewards})

    def post(self, url, body):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request) as answer:
            return json.loads(answer.read() or b"{}")


def calls_of(message):
    """Yields the tool calls of a message: (id, name, arguments)."""
    for call in message.get("tool_calls") or []:
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            arguments = {}
        yield call["id"], call["function"]["name"], arguments if isinstance(arguments, dict) else {}


def inlined(schema):
    """Inlines the definitions of a JSON schema, so that short signatures show enum choices."""
    defined = {f"#/$defs/{name}": each for name, each in schema.get("$defs", {}).items()}

    def put(value, inside):
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
        return put(schema, ()) if defined else schema
    except RecursionError:
        return schema


def text_of(value):
    """Formats a value for the model: text unchanged, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value):
    """Converts arrays to lists, enums to their values, others to text."""
    if isinstance(value, enum.Enum):
        return value.value
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main(what, kind, spec, number=None):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of packages must not mix with tasks
    spec = json.loads(spec)
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
        rewards, answer = module.play(spec, int(number), model)
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


def tell(text):
    """Prints a message for the user."""
    print(f"\f{text}", file=sys.stderr)


PIP = {"inspect_ai": "inspect-ai openai", "inspect_evals": "inspect-evals", "ors": "ors-sdk"}

if __name__ == "__main__":
    import guest  # under its module name, so that there is only one class `Away`

    sys.exit(guest.main(*sys.argv[1:]))
