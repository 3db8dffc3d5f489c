"""Harbor task folders as others write them: images, Dockerfiles and test.sh as they are found in public task sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.integrations.harbor.dockerfile import Copy, RunStep, plan_of, root_of
from agentrl.integrations.harbor.no_installs import command_of
from agentrl.types.errors import TaskError
from tests.integrations.test_harbor import TOML, a_recipe, a_task, rewards, tasks

MODULE = """\
import sys

if __name__ == "__main__":
    passed = open("/app/sum.txt").read() == "10\\n" and "--ctrf" not in sys.argv
    sys.exit(0 if passed else 1)
"""
HELPED = """\
import subprocess, sys
from helper import wanted
ran = subprocess.run([sys.executable, "/app/run.py"], capture_output=True, text=True)
sys.exit(0 if ran.stdout.strip() == wanted else ran.stderr)
"""
SCORED = """\
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
FORGE = """\
from agentrl import Say

def forge(task, rng):
    yield Say(calls=[("shell", {"command": "echo 'import os; os._exit(0)' > json.py"})])
    yield Say("Done.")
"""


def a_dockerfile(folder: Path, text: str, **files: str) -> Path:
    task = a_task(folder, **{"environment/Dockerfile": text, **files})
    return task / "environment" / "Dockerfile"


def test_the_image_of_the_recipe_goes_before_that_of_the_task(tmp_path: Path) -> None:
    folder = a_recipe(tmp_path)
    a_task(folder / "tasks" / "shared", **{"task.toml": TOML + 'docker_image = "someone/shared:1"\n'})
    (own,) = tasks(folder, only=["shared"])
    (ours,) = tasks(folder, only=["shared"], image="agentrl/swe")
    assert own.sandbox is not None
    assert ours.sandbox is not None
    assert (own.sandbox["image"], ours.sandbox["image"]) == ("someone/shared:1", "agentrl/swe")


@pytest.mark.parametrize("line", ["COPY run.sh /etc/service/run", "COPY --from=ghcr.io/a/uv:1 /uv /uvx /bin/"])
def test_an_image_that_was_built_of_the_folder_holds_what_is_copied_to_its_system(tmp_path: Path, line: str) -> None:
    folder = a_recipe(tmp_path)
    a_dockerfile(folder / "tasks" / "shared", f"FROM x\nWORKDIR /app\n{line}\n")
    (task,) = tasks(folder, only=["shared"], image="mine/shared")
    assert task.data["harbor"]["left_to_the_image"] == [line]
    for image in (None, "agentrl/swe"):
        with pytest.raises(TaskError, match=r"(?s)Dockerfile:3: copies to /(etc|bin).*-> build an image of the folder"):
            tasks(folder, only=["shared"], image=image)


@pytest.mark.slow
def test_a_file_that_is_copied_to_a_folder_lies_in_it(tmp_path: Path) -> None:
    folder = a_recipe(tmp_path)
    copies = "COPY numbers.txt /app\nRUN mkdir -p /data/in\nCOPY run.sh /data/in\nCOPY run.sh /app/go\n"
    look = "cat numbers.txt go /data/in/run.sh | wc -l > sum.txt\n"
    files = {"solution/solve.sh": look, "task.toml": TOML.replace("-10}", "-5}")}
    a_dockerfile(folder / "tasks" / "shared", f"FROM x\nWORKDIR /app\n{copies}", **files)
    only = {"tasks.args": {"path": "tasks", "only": ["shared"]}}
    assert rewards(folder, "oracle", "gold", n=1, **only) == {"shared": 1.0}


@pytest.mark.slow
def test_commands_run_in_the_shell_of_the_dockerfile(tmp_path: Path) -> None:
    folder = a_recipe(tmp_path)
    lines = 'RUN echo $0 > shells\nSHELL ["/bin/bash", "-o", "pipefail", "-c"]\nRUN echo $0 >> shells\n'
    files = {"solution/solve.sh": "test \"$(echo $(cat shells))\" = '/bin/sh /bin/bash' && echo 10 > sum.txt\n"}
    a_dockerfile(folder / "tasks" / "shared", f"FROM x\nWORKDIR /app\n{lines}", **files)
    only = {"tasks.args": {"path": "tasks", "only": ["shared"]}}
    assert rewards(folder, "oracle", "gold", n=1, **only) == {"shared": 1.0}


@pytest.mark.slow
def test_a_working_folder_that_the_dockerfile_fills_is_empty_before(tmp_path: Path) -> None:
    """`git clone` wants an empty folder, and `git config --global` before it writes to the home."""
    folder = a_recipe(tmp_path)
    lines = (
        'RUN echo mine > ~/.settings && test -z "$(ls -A /app/repo)" && echo 10 > /app/repo/file\nWORKDIR /app/repo\n'
    )
    files = {"solution/solve.sh": 'test "$(cat ~/.settings)" = mine && cp file /app/sum.txt\n'}
    a_dockerfile(folder / "tasks" / "shared", f"FROM x\nWORKDIR /app\n{lines}", **files)
    only = {"tasks.args": {"path": "tasks", "only": ["shared"]}}
    assert rewards(folder, "oracle", "gold", n=1, **only) == {"shared": 1.0}


def test_the_folders_that_a_file_needs(tmp_path: Path) -> None:
    found = [root_of(path) for path in ("/opt/a.py", "/opt/a/b.py", "/srv/a", "/a.txt", "/a/b.txt", "/etc/a", "/tmp/a")]
    assert found == ["/opt", "/opt/a", "/srv/a", "", "/a", "", ""]
    lines = "FROM x\nCOPY run.sh /opt/run\nCOPY sub /srv/a\nCOPY run.sh /mnt/a/\nCOPY run.sh /made\nCOPY run.sh /tmp\n"
    assert plan_of(a_dockerfile(tmp_path, lines)).writable == {"/opt", "/srv/a", "/mnt/a", "/made"}
    with pytest.raises(TaskError, match=r"Dockerfile:2: copies to /run\.txt: a sandbox holds no file in /"):
        plan_of(a_dockerfile(tmp_path, "FROM x\nCOPY run.sh /run.txt\n"))


@pytest.mark.parametrize(
    ("text", "kept", "left"),
    [
        ("RUN rm -rf made # we don't want it && more", ["rm -rf made # we don't want it && more"], []),
        ("RUN echo 1 > a && apt-get clean && rm -rf /var/lib/apt/lists/*", ["echo 1 > a"],
         ["apt-get clean", "rm -rf /var/lib/apt/lists/*"]),
        ('RUN ["cp", "a b", "/app/c"]', ["cp 'a b' /app/c"], []),
        ("RUN cat > a <<'EOF'\nit's && \"\nEOF", ["cat > a <<'EOF'\nit's && \"\nEOF"], []),
    ],
)  # fmt: skip
def test_commands_as_they_are_found(tmp_path: Path, text: str, kept: list[str], left: list[str]) -> None:
    plan = plan_of(a_dockerfile(tmp_path, f"FROM x\nWORKDIR /app\n{text}\n"))
    assert [step.command for step in plan.steps if isinstance(step, RunStep)] == kept
    assert plan.left == left
    assert plan.writable == {"/app"}


def test_variables_are_filled_in_as_a_build_does(tmp_path: Path) -> None:
    text = "FROM x\nARG TOKEN\nENV A=/app:$UNKNOWN B=${TOKEN:-none} C=${A:+set}\nWORKDIR ${B}\nCOPY run.sh ${C}/\n"
    path = a_dockerfile(tmp_path, text)
    plan = plan_of(path)
    assert plan.env == {"A": "/app:", "B": "none", "C": "set"}
    assert plan.steps == [Copy((path.parent / "run.sh",), "/none/set", into=True)]


@pytest.mark.slow
def test_the_guard_leaves_the_programs_of_the_task_as_they_are(tmp_path: Path) -> None:
    """A script of /tests has its neighbours, and what it starts has those of its own folder."""
    folder = a_recipe(tmp_path)
    run = "cd /app; python3 -m json.tool run.json > /dev/null && python3 /tests/check.py"
    solution = "echo '{}' > run.json; echo 'from total import x; print(x)' > run.py; echo 'x = 10' > total.py\n"
    a_task(folder / "tasks" / "shared", **{
        "tests/test.sh": f"mkdir -p /logs/verifier\n{run}\n{SCORED}", "tests/check.py": HELPED,
        "tests/helper.py": "wanted = '10'\n", "solution/solve.sh": solution,
    })  # fmt: skip
    (folder / "forge.py").write_text(FORGE + "seen = forge\n")
    only = {"tasks.args": {"path": "tasks", "only": ["shared"]}}
    assert rewards(folder, "oracle", "gold", n=1, **only) == {"shared": 1.0}
    assert rewards(folder, "forge", "forged", n=1, **only) == {"shared": 0.0}


INSTALLS = {
    "uvx": "uvx -p 3.13 -w pytest==8.4.1 --no-cache-dir checks",
    "uv": "uv venv .tb && uv pip install pytest && uv run checks",
    "pip": "python -m pip install --quiet nothing-of-this-name && python -m checks",
    "tool": "pip install nothing-of-this-name && uv tool run checks",
}


@pytest.mark.slow
def test_a_verifier_that_would_install_runs_offline(tmp_path: Path) -> None:
    folder = a_recipe(tmp_path)
    first = "set -e\nmkdir -p /logs/verifier\ncurl https://example.org | sh\nsource $HOME/.local/bin/env\nset +e"
    env = TOML.replace("[environment]\n", "[environment]\nenv = {PYTHONPATH = '/tests'}\n")
    for name, run in INSTALLS.items():
        files = {"tests/test.sh": f"{first}\n{run}\n{SCORED}", "tests/checks.py": MODULE, "task.toml": env}
        a_task(folder / "tasks" / name, **files)
    settings = {"tasks.args": {"path": "tasks", "only": [*INSTALLS]}, "rewards.harbor.offline": True}
    n = len(INSTALLS)
    assert rewards(folder, "oracle", "gold", n, **settings) == dict.fromkeys(INSTALLS, 1.0)
    assert rewards(folder, "seen", "nothing", n, **settings) == dict.fromkeys(INSTALLS, 0.0)


@pytest.mark.parametrize(
    ("called", "command"),
    [
        ("uvx -p 3.13 -w a==1 -w b pytest --ctrf r.json /tests/t.py -rA", "py -m pytest /tests/t.py -rA"),
        ("uvx --with=a --no-cache-dir pytest@8 --ctrf=r.json t.py", "py -m pytest t.py"),
        ("uvx --from a sh -c x", "sh -c x"),
        ("uv run --frozen pytest t.py", "py -m pytest t.py"),
        ("uv run /tests/t.py 1", "py /tests/t.py 1"),
        ("uv run python -m pytest --json-ctrf r.json t.py", "py -m pytest t.py"),
        ("uv run -m pytest t.py", "py -m pytest t.py"),
        ("uv tool run pytest t.py", "py -m pytest t.py"),
        ("uv pip install run", None),
        ("uv sync", None),
        ("uvx --version", None),
        ("pytest -q", "py -m pytest -q"),
        ("python -m pip install x", None),
        ("python -m ensurepip", None),
        ("python -m http.server", "py -m http.server"),
    ],
)
def test_what_runs_in_the_place_of_uv(called: str, command: str | None) -> None:
    name, *words = called.split()
    ran = command_of(name, words, "py", reports=False)
    assert (None if ran is None else " ".join(ran)) == command


def test_a_plug_in_that_writes_reports_gets_its_flags() -> None:
    assert command_of("pytest", ["--ctrf", "r.json"], "py", reports=True) == ["py", "-m", "pytest", "--ctrf", "r.json"]
