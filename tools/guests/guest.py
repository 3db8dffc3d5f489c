"""Plays an environment of another framework against the policy that agentrl serves; runs in that framework's Python.

    python guest.py tasks KIND SPEC [N]        prints a JSON object per task, of the first N: id, instruction, data
    python guest.py play KIND SPEC INDEX       plays task INDEX at OPENAI_BASE_URL, and hands its reward back

SPEC is a JSON object, KIND names a module `of_KIND` beside this file. Nothing of agentrl is imported here.
Exit code 75: something outside failed, and another attempt may succeed; 64: the environment cannot be used at all.
What a person should read stands on stderr behind a form feed: frameworks print there too.
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
    """The environment cannot be used as it is asked for; the message says what to do."""


class Away(Exception):
    """Something outside is away: a server, a service."""


class Model:
    """The policy, over chat completions. A reply is a message: `content`, and perhaps `tool_calls`.

    `OPENAI_BASE_URL` and `OPENAI_API_KEY` are not its: with them the environment asks others, such as a judge.
    """

    def __init__(self):
        self.url, self.key = os.environ["AGENTRL_BASE_URL"], os.environ["AGENTRL_API_KEY"]
        self.name = os.environ.get("AGENTRL_MODEL", "policy")

    def reply(self, messages, tools=None, rewards=None):
        """The next message; None: the episode is over (a limit was reached).

        `rewards` are those so far: they count if a limit ends the episode.
        """
        body = {"model": self.name, "messages": messages, **({"tools": tools} if tools else {})}
        if rewards is not None:
            body["agentrl_rewards"] = rewards
        try:
            return self.post(f"{self.url}/chat/completions", body)["choices"][0]["message"]
        except urllib.error.HTTPError:
            return None

    def end(self, rewards, answer=None):
        """Hands the rewards of the episode back."""
        self.post(f"{os.environ['AGENTRL_URL']}/end", {"answer": answer or "", "rewards": rewards})

    def post(self, url, body):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request) as answer:
            return json.loads(answer.read() or b"{}")


def calls_of(message):
    """The tool calls of a message: (id, name, arguments)."""
    for call in message.get("tool_calls") or []:
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            arguments = {}
        yield call["id"], call["function"]["name"], arguments if isinstance(arguments, dict) else {}


def inlined(schema):
    """A JSON schema with its definitions in the places that name them: a short signature shows choices only so."""
    defined = {f"#/$defs/{name}": each for name, each in schema.get("$defs", {}).items()}

    def put(value, inside):
        if isinstance(value, list):
            return [put(each, inside) for each in value]
        if not isinstance(value, dict):
            return value
        name = value.get("$ref")
        if name in inside:  # in itself
            raise RecursionError(name)
        if name in defined:
            return put({**defined[name], **{k: v for k, v in value.items() if k != "$ref"}}, (*inside, name))
        return {k: put(v, inside) for k, v in value.items() if k != "$defs"}

    try:
        return put(schema, ()) if defined else schema
    except RecursionError:
        return schema


def text_of(value):
    """What the model is shown of a value: text as it is, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value):
    """Arrays as lists, choices as their values, others as text."""
    if isinstance(value, enum.Enum):
        return value.value
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main(what, kind, spec, number=None):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print is no task
    spec = json.loads(spec)
    path = spec.pop("path", [])
    sys.path.extend(path)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*path, os.environ.get("PYTHONPATH")]))  # of its servers
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
    """Says what a person should read."""
    print(f"\f{text}", file=sys.stderr)


PIP = {"inspect_ai": "inspect-ai openai", "inspect_evals": "inspect-evals", "ors": "ors-sdk"}

if __name__ == "__main__":
    import guest  # this file under the name by which the others know it: one class `Away`

    sys.exit(guest.main(*sys.argv[1:]))
