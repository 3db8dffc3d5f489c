"""Verifier of a task exported by `agentrl env export --to harbor`: needs only Python.

Reads checks.json in its folder: {"answer_file": PATH, "components": [{"kind", "weight", ...}]}. Prints failed checks
and writes the weighted sum of the components to /logs/verifier/reward.txt.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

Check = dict[str, Any]
Given = dict[str, Any]
"""Content of checks.json."""
User = dict[str, Any]
"""Arguments of `subprocess`: whom a program runs as."""

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
USER = 61234
"""User id of the code under test, if this program runs as root. Must be unused in the container."""

STUB = """\
import sys
sys.path.insert(0, {folder!r})
try:
    import agentrl_stub
finally:
    sys.path.remove({folder!r})
agentrl_stub.become(__name__, {path!r})
"""


def answer(check: Check, given: Given) -> bool:
    """Checks for an exact match after SQuAD's normalisation."""
    said = Path(given["answer_file"])
    return said.is_file() and _normalised(said.read_text(errors="replace")) in map(_normalised, check["references"])


def tests(check: Check, given: Given) -> bool:
    """Runs statements with the names of the first file, each in a separate process that must prove its completion.

    The code runs in other processes without access to the statements and the proof; the statements see a stub of it.
    The programs are those of agentrl's reward `code_tests`.
    """
    code, workdir = Path(check["files"][0]), Path(given["workdir"])
    if not code.is_file():
        return False
    root = workdir if workdir in code.parents else code.parent
    entry = code.relative_to(root)
    with tempfile.TemporaryDirectory() as held, _served(root, Path(held), entry) as judge:
        return all(_passes(test, str(entry), judge, check) for test in check["tests"])


def _passes(test: str, entry: str, judge: Path, check: Check) -> bool:
    job = {"kind": "statements", "text": test, "entry": entry, "stub": True, "names": check.get("names", [])}
    word = secrets.token_hex(16)
    given = json.dumps({"word": word, "foreign": [], **job})
    done = _run([sys.executable, "-I", judge / "agentrl_proof.py"], check["timeout_s"], judge / "tests", input=given)
    passed = done is not None and done.returncode == 0 and f"\n{word}\n" in done.stdout
    if not passed:
        print(f"failed: {test}", *([] if done is None else [done.stderr[-300:]]))
    return passed


@contextlib.contextmanager
def _served(root: Path, held: Path, entry: Path) -> Iterator[Path]:
    """Runs the code from a copy of its folder behind a socket; yields the folder of the statements."""
    judge, served = held / "judge", held / "served"
    shutil.copytree(PROGRAMS, judge)
    shutil.copytree(PROGRAMS, served)
    stub = judge / "tests" / entry
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB.format(folder=str(judge), path=str(entry)))
    _run(["cp", "-RP", f"{root}/.", served / "code"], 600, held)
    _run(["chmod", "-R", "a+rwX", served], 600, held)
    judge.chmod(0o700)
    held.chmod(0o711)
    user, python = _other_user(), [sys.executable, "-u"]
    relay = subprocess.Popen([*python, judge / "agentrl_mux.py", judge / "socket"], bufsize=0, stdin=PIPE, stdout=PIPE)
    assert relay.stdin
    assert relay.stdout
    relay.stdout.read(8)  # wait until it listens
    server = subprocess.Popen(
        [*python, served / "agentrl_server.py"], stdin=relay.stdout, stdout=relay.stdin, cwd=served / "code",
        env={**os.environ, "HOME": str(served / "code"), "PYTHONSAFEPATH": ""},  # it imports modules of its folder
        start_new_session=True, **user,
    )  # fmt: skip
    relay.stdin.close()
    relay.stdout.close()
    try:
        yield judge
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        if user:  # processes that left the group: all of that user
            subprocess.run(["sh", "-c", "kill -9 -1"], stderr=subprocess.DEVNULL, **user)
        relay.kill()
        server.wait()
        relay.wait()


def _other_user() -> User:
    """Returns options to run the code as a user without access to this folder and its processes; {} if not root."""
    user: User = {"user": USER, "group": USER, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, stderr=subprocess.DEVNULL, **user)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return user


def state(check: Check, given: Given) -> bool:
    """Checks files and commands like the reward `state_check`."""
    for each in check["state"]:
        if "command" in each:
            done = _run(["sh", "-c", each["command"]], check["timeout_s"], cwd=given["workdir"])
            said = None if done is None else done.stdout.strip()
            wrong = done is None or done.returncode != each.get("exit", 0)
            holds = not wrong and ("stdout" not in each or said == str(each["stdout"]).strip())
        else:
            path = Path(given["workdir"], each["file"])
            text = path.read_text(errors="replace").strip() if path.is_file() else None
            holds = (text is None) if each.get("absent") else text is not None and _fits(text, each)
        if not holds:
            print(f"failed: {each}")
            return False
    return True


def _fits(text: str, check: Check) -> bool:
    return (
        ("equals" not in check or text == str(check["equals"]).strip())
        and ("contains" not in check or str(check["contains"]) in text)
        and ("matches" not in check or re.search(str(check["matches"]), text) is not None)
    )


def _run(
    command: list[Any], seconds: float, cwd: Path | str, input: str = ""
) -> subprocess.CompletedProcess[str] | None:
    """Runs a command; returns None after a timeout."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            input=input,
            timeout=seconds,
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _normalised(text: str) -> str:
    lower = text.lower()
    bare = "".join(each for each in lower if each not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split() or lower.split())


KINDS = {"exact_match": answer, "code_tests": tests, "state_check": state}


def main() -> None:
    checks, logs = HERE / "checks.json", Path("/logs/verifier")
    given = json.loads(checks.read_text())
    with contextlib.suppress(OSError):
        checks.chmod(0o600)
    reward = sum(each["weight"] * float(KINDS[each["kind"]](each, given)) for each in given["components"])
    logs.mkdir(parents=True, exist_ok=True)
    for name in ("reward.json", "reward.txt"):  # may be planted by the code under test
        (logs / name).unlink(missing_ok=True)
    (logs / "reward.txt").write_text(f"{reward}\n")


if __name__ == "__main__":
    main()
