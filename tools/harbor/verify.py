"""The verifier of a task that `agentrl env export --to harbor` wrote: needs Python and nothing else.

Reads checks.json beside it: {"answer_file": PATH, "components": [{"kind", "weight", ...}]}. Prints what failed, and
writes the weighted sum of the components to /logs/verifier/reward.txt.
"""

import json
import re
import secrets
import string
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def answer(check, given):
    """Exact match after SQuAD's normalisation."""
    said = Path(given["answer_file"])
    return said.is_file() and _normalised(said.read_text(errors="replace")) in map(_normalised, check["references"])


def tests(check, given):
    """Statements that see the names of the first file, each in a process of its own that must reach its end."""
    code = Path(check["files"][0])
    if not code.is_file():
        return False
    for test in check["tests"]:
        proof = secrets.token_hex(16)
        body = f"{code.read_text(errors='replace')}\n{test}\n"
        main = f"exec(compile({body!r}, {str(code)!r}, 'exec'), {{'__name__': 'solution'}})\nprint({proof!r})\n"
        done = _run([sys.executable, "-I", "-"], check["timeout_s"], cwd=code.parent, input=main)
        if done is None or done.returncode or done.stdout.strip().rpartition("\n")[2] != proof:
            print(f"failed: {test}", *([] if done is None else [done.stderr[-300:]]))
            return False
    return True


def state(check, given):
    """Files and commands, as `state_check` has them."""
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


def _fits(text, check):
    return (
        ("equals" not in check or text == str(check["equals"]).strip())
        and ("contains" not in check or str(check["contains"]) in text)
        and ("matches" not in check or re.search(str(check["matches"]), text) is not None)
    )


def _run(command, seconds, cwd, input=""):
    """None if it took too long."""
    given = {"input": input, "timeout": seconds, "cwd": cwd}
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", **given)
    except subprocess.TimeoutExpired:
        return None


def _normalised(text):
    lower = text.lower()
    bare = "".join(each for each in lower if each not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split() or lower.split())


KINDS = {"exact_match": answer, "code_tests": tests, "state_check": state}


def main():
    given = json.loads((HERE / "checks.json").read_text())
    reward = sum(each["weight"] * float(KINDS[each["kind"]](each, given)) for each in given["components"])
    Path("/logs/verifier").mkdir(parents=True, exist_ok=True)
    Path("/logs/verifier/reward.txt").write_text(f"{reward}\n")


if __name__ == "__main__":
    main()
