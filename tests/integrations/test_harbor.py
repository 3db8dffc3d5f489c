"""Harbor task folders as tasks: played and verified in both backends, forged, and refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.api.recipe_check import check
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.engines.scripted import Say
from agentrl.integrations.harbor.config import read_task_toml
from agentrl.integrations.harbor.dockerfile import Copy, RunStep, plan_of, root_of
from agentrl.integrations.harbor.programs import called_in, program_in
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, RecipeError, TaskError
from agentrl.types.task import Task

DOCKERFILE = """\
FROM python:3.12-slim@sha256:0 AS base
ARG NAME=data
ENV LIMIT=3 NAME=$NAME \\
    WHERE=/app
# a comment
RUN apt-get update && apt-get install -y jq && mkdir -p /app/made && echo "a && b" > /app/made/quoted
WORKDIR /app
COPY --chmod=755 numbers.txt run.sh ./
COPY [ "sub", "/app/${NAME}" ]
RUN <<END
echo heredoc > /app/made/here
END
RUN useradd someone
CMD ["bash"]
"""
TEST = """\
#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /app/sum.txt 2>/dev/null)" = "$WANTED" ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
TOML = """\
schema_version = "1.3"
artifacts = ["/app/sum.txt"]
[verifier]
timeout_sec = 20.0
env = {WANTED = "${AGENTRL_TEST_WANTED:-10}"}
[environment]
allow_internet = false
memory_mb = 256
unknown_key = true
storage_mb = 10240
storage = "10G"
build_timeout_sec = 600.0
gpu_types = []
skills_dir = "/skills"
"""
RECIPE = """\
name: harbor
tasks: {source: harbor, args: {path: tasks, build: false}}
agent: {max_turns: 4, format: hermes}
tools: [harbor, shell]
rewards: {harbor: {}}
scripts:
  oracle: "agentrl.integrations.harbor.tasks:oracle"
  forge: ./forge.py:forge
  seen: ./forge.py:seen
"""
FORGE = """\
from agentrl import Say

FORGED = '''
mkdir -p /logs/verifier /tests
echo 1 > /logs/verifier/reward.txt
echo '{"reward": 1}' > /logs/verifier/reward.json
printf 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
touch /tests/.hidden
chmod 000 /logs/verifier /tests
(while true; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done) >/dev/null 2>&1 &
'''
LOOK = '''
ls -A /tests /solution; cat made/quoted made/here
ls; echo $LIMIT $WHERE; stat -c %a run.sh; cat data/deep
'''

def forge(task, rng):
    yield Say(calls=[("shell", {"command": FORGED})])
    yield Say("Done.")

def seen(task, rng):
    yield Say(calls=[("shell", {"command": LOOK})])
    yield Say("Done.")
"""


def in_json(reward: str) -> str:
    """The test with an object as reward."""
    return TEST.replace("1 > /logs/verifier/reward.txt", f"'{reward}' > /logs/verifier/reward.json")


def a_task(folder: Path, **files: str) -> Path:
    """A task that asks for the sum of three numbers; `files` replaces some of its files (`/` is written `__`)."""
    content = {
        "task.toml": TOML,
        "instruction.md": "<!-- canary 123 -->\n\nWrite the sum of /app/numbers.txt to /app/sum.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/numbers.txt": "1\n2\n7\n",
        "environment/run.sh": "true\n",
        "environment/sub/deep": "deep\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": "paste -sd+ /app/numbers.txt | bc > /app/sum.txt 2>/dev/null || echo 10 > /app/sum.txt\n",
    }
    for name, text in (content | {name.replace("__", "/"): text for name, text in files.items()}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def a_recipe(tmp_path: Path) -> Path:
    """A recipe with three tasks: a shared verifier, one apart, and one with an object as reward."""
    a_task(tmp_path / "tasks" / "shared")
    apart = TOML.replace("[verifier]\n", '[verifier]\nenvironment_mode = "separate"\n')
    a_task(tmp_path / "tasks" / "apart", **{"task.toml": apart})
    scored = TEST.replace(
        "1 > /logs/verifier/reward.txt", '\'{"reward": 1, "speed": 0.5}\' > /logs/verifier/reward.json'
    )
    a_task(tmp_path / "tasks" / "object", **{"tests/test.sh": scored})
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "forge.py").write_text(FORGE)
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_recipe(tmp_path)


def rewards(folder: Path, script: str, out: str, n: int = 3, **overrides: Any) -> dict[str, float | None]:
    run = agentrl.rollout(folder, n, script=script, out=folder / out, overrides=overrides, reporters=())
    return {episode.task_id: episode.reward for episode in run.episodes}


@pytest.mark.slow
@pytest.mark.family("harbor")
def test_the_solution_passes_and_the_forger_gets_nothing(folder: Path) -> None:
    assert rewards(folder, "oracle", "gold") == {"shared": 1.0, "apart": 1.0, "object": 1.0}
    assert rewards(folder, "forge", "forged") == {"shared": 0.0, "apart": 0.0, "object": 0.0}


@pytest.mark.slow
@pytest.mark.family("harbor")
def test_what_the_sandbox_holds(folder: Path) -> None:
    run = agentrl.rollout(folder, 1, script="seen", out=folder / "seen", reporters=())
    (call,) = run.calls
    told = "/solution:\n\n/tests:\na && b\nheredoc\ndata\nmade\nnumbers.txt\nrun.sh\n3 /app\n755\ndeep"
    assert call.result == told


def tasks(folder: Path, **args: Any) -> list[Task]:
    return load_tasks(
        TaskSettings(source="harbor", args={"path": "tasks", "build": False, **args}), folder, seed=0
    ).tasks


def test_a_folder_without_tasks_says_what_it_holds(folder: Path) -> None:
    with pytest.raises(TaskError, match=r"(?s)there is no folder .*did you mean 'tasks'\?"):
        tasks(folder, path="task")
    (older := folder / "older" / "hello").mkdir(parents=True)
    (older / "task.yaml").write_text("instruction: Go.\n")
    with pytest.raises(TaskError, match=r"(?s)hello is a task of Terminal-Bench 1.*harbor tasks migrate -i .*older"):
        tasks(folder, path="older")


def test_files_written_on_windows(folder: Path) -> None:
    shared = folder / "tasks" / "shared"
    for name in ("task.toml", "instruction.md"):
        (shared / name).write_bytes(b"\xef\xbb\xbf" + (shared / name).read_text().replace("\n", "\r\n").encode())
    (task,) = tasks(folder, only=["sh*"])
    assert task.instruction[0]["content"] == "Write the sum of /app/numbers.txt to /app/sum.txt."
    test = shared / "tests" / "test.sh"
    test.write_bytes(test.read_text().replace("\n", "\r\n").encode())
    with pytest.raises(TaskError, match=r"(?s)test.sh has line ends of Windows.*-> sed -i"):
        tasks(folder, only=["sh*"])
    assert [task.id for task in tasks(folder, skip=True)] == ["apart", "object"]


def test_what_a_task_says(folder: Path) -> None:
    (task,) = tasks(folder, only=["sh*"])
    assert task.instruction[0]["content"] == "Write the sum of /app/numbers.txt to /app/sum.txt."
    assert task.sandbox == {
        "workdir": "/app", "writable": ["/logs", "/solution", "/tests"], "network": "none", "memory_mb": 256,
        "env": {"LIMIT": "3", "NAME": "data", "WHERE": "/app"},
    }  # fmt: skip
    assert task.data["harbor"]["left_to_the_image"] == ["apt-get update", "apt-get install -y jq", "useradd someone"]


def test_a_compose_file_of_one_container_is_served(folder: Path) -> None:
    main = "{build: {context: .}, command: [sleep, infinity], environment: [A=1, 'B=${NONE:-2}']}"
    text = f"services:\n  main: {main}\n"
    a_task(folder / "tasks" / "shared", **{"environment/docker-compose.yaml": text})
    (task,) = tasks(folder, only=["shared"])
    assert task.sandbox is not None
    assert task.sandbox["env"] == {"LIMIT": "3", "NAME": "data", "WHERE": "/app", "A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("said", "network"),
    [
        ("allow_internet = true", "public"),
        ('network_mode = "no-network"', "none"),
        ('network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]', {"allow": ["pypi.org"]}),
        ('network_mode = "allowlist"', "none"),
        ('network_mode = "public"', "public"),
    ],
)
def test_network_modes(folder: Path, said: str, network: Any) -> None:
    a_task(folder / "tasks" / "shared", **{"task.toml": TOML.replace("allow_internet = false", said)})
    (task,) = tasks(folder, only=["shared"])
    assert task.sandbox is not None
    assert task.sandbox["network"] == network
    (task,) = tasks(folder, only=["shared"], network={"allow": ["a.org"]})
    assert task.sandbox is not None
    assert task.sandbox["network"] == {"allow": ["a.org"]}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"task.toml": "[environment\n"}, r"(?s)shared/task\.toml: not valid TOML.*line 1.*exclude"),
        ({"task.toml": "[verifier]\ntimeout_sec = 'long'"}, r"task\.toml: verifier\.timeout_sec: .*'long'"),
        ({"task.toml": TOML + "gpus = 1"}, r"(?s)shared: it asks for GPUs.*skip"),
        ({"task.toml": TOML + "[[steps]]\nname = 'a'"}, "step 'a' has no instruction.md"),
        (
            {"environment/docker-compose.yaml": "services: {main: {}, db: {image: x}}"},
            r"several containers \(docker-compose\.yaml: db\)",
        ),
        ({"environment/docker-compose.yaml": "services: {main: {privileged: true}}"}, "privileged of its container"),
        ({"environment/docker-compose.yaml": "services: {main: {build: ./other}}"}, "a build of ./other"),
        ({"environment/docker-compose.yaml": "services: {main: {image: x}}"}, "environment.docker_image"),
        ({"environment/docker-compose.yaml": "services: {main: {}}\nvolumes: {a: {}}"}, "volumes"),
        ({"environment/docker-compose.yaml": "- a"}, "docker-compose.yaml: it is no compose file"),
        ({"task.toml": TOML + '[agent]\nnetwork_mode = "public"'}, "agent's network is public, the verifier's none"),
        ({"task.toml": TOML + "[environment.env]\nKEY = '${AGENTRL_NOT_SET}'"}, "AGENTRL_NOT_SET is not set"),
        ({"task.toml": TOML.replace("${AGENTRL_TEST_WANTED:-10}", "${AGENTRL_NOT_SET}")}, "AGENTRL_NOT_SET is not set"),
        (
            {"environment/Dockerfile": "FROM x\nCOPY none /app/"},
            r"(?s)Dockerfile:2: there is no file none.*-> add it to",
        ),
        ({"task.toml": TOML.replace("memory_mb", "memory_mbs")}, r"(?s)'memory_mbs'.*did you mean 'memory_mb'"),
        ({"environment/Dockerfile": "FROM x\nCOPY run.sh /etc/x"}, r"Dockerfile:2: copies to /etc/x"),
        ({"environment/Dockerfile": "FROM x\nCOPY --from=b /x /app/"}, "from another image"),
        ({"environment/Dockerfile": "# none\nFROM"}, "Dockerfile:2: FROM names no image"),
        ({"environment/Dockerfile": "FROM --platform=linux/amd64"}, "Dockerfile:1: FROM names no image"),
        ({"environment/Dockerfile": "FROM x\nCOPY [1,2]"}, r"Dockerfile:2: copies what is no list of paths: \[1,2\]"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(folder: Path, files: dict[str, str], expected: str) -> None:
    a_task(folder / "tasks" / "shared", **files)
    with pytest.raises(TaskError, match=expected):
        tasks(folder)
    assert [task.id for task in tasks(folder, skip=True)] == ["apart", "object"]
    left_out = TaskSettings(source="harbor", args={"path": "tasks"}, exclude={"shared": "broken"})
    assert [task.id for task in load_tasks(left_out, folder, 0).tasks] == ["apart", "object"]


def test_a_broken_task_that_is_skipped_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    a_task(folder / "tasks" / "shared", **{"task.toml": "[environment\n"})
    a_task(folder / "tasks" / "apart", **{"task.toml": TOML + "gpus = 1"})
    assert [task.id for task in tasks(folder, skip=True)] == ["object"]
    (warning,) = caplog.messages
    assert "task shared is left out (tasks.args.skip)" in warning
    assert "task.toml: not valid TOML" in warning


def test_the_tool_that_puts_the_files_in_place_is_not_forgotten(folder: Path) -> None:
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("[harbor, shell]", "[shell]"))
    needed = r"(?s)tools: tasks of the source harbor need the tool harbor.*-> tools: \[harbor, shell\]"
    with pytest.raises(RecipeError, match=needed):
        check(str(folder), [])
    with pytest.raises(RecipeError, match=needed):
        agentrl.rollout(folder, 1, script="oracle", out=folder / "out", reporters=())


@pytest.mark.slow
@pytest.mark.family("harbor")
def test_the_public_network_is_refused_with_the_key_of_the_source(folder: Path) -> None:
    with pytest.raises(TaskError, match=r"(?s)gives no public network.*tasks\.args\.network"):
        check(str(folder), ["tasks.args.network=public", "sandbox.use=namespace"])


def verified_by(folder: Path, test: str) -> Episode:
    """Plays the oracle on a task with this test.sh."""
    a_task(folder / "tasks" / "shared", **{"tests/test.sh": test})
    only = {"tasks.args": {"path": "tasks", "build": False, "only": ["shared"]}}
    run = agentrl.rollout(folder, 1, script="oracle", out=folder / "out", overrides=only, reporters=())
    (episode,) = run.whole_episodes()
    return episode


@pytest.mark.slow
@pytest.mark.family("harbor")
@pytest.mark.parametrize(
    ("test", "noted"),
    [
        ("exit 3\n", "wrote no reward file"),
        ("mkdir -p /logs/verifier; echo yes > /logs/verifier/reward.txt\n", "cannot be read"),
    ],
)
def test_a_verifier_without_a_reward_gives_0_and_a_note(folder: Path, test: str, noted: str) -> None:
    """The agent may have caused it: an episode without reward would be its way out of a bad one."""
    episode = verified_by(folder, test)
    assert episode.reward == 0.0
    assert noted in episode.notes["harbor"]


@pytest.mark.slow
@pytest.mark.family("harbor")
@pytest.mark.parametrize(
    ("test", "program"),
    [
        ("rewardkit-none /tests\n", "rewardkit-none"),
        ("echo 0 > /logs/verifier/reward.txt; exec no-such-checker\n", "no-such-checker"),
        ("sh -c 'grader-none; exit $?'\n", "grader-none"),
        ("touch /tmp/x; /tmp/../usr/x/no-such-grader\n", "no-such-grader"),
    ],
)
def test_a_verifier_whose_program_is_missing_measures_nothing(folder: Path, test: str, program: str) -> None:
    """It is named, counts as a failure, and is never a reward of 0."""
    episode = verified_by(folder, test)
    assert (episode.status, episode.reward) == ("user_error", None)
    assert episode.error is not None
    assert program in episode.error.message.partition("test.sh:")[0]
    assert "tasks.args.image" in episode.error.message


@pytest.mark.slow
@pytest.mark.family("harbor")
@pytest.mark.parametrize(
    ("files", "noted"),
    [
        ({"tests/test.sh": "/app/made-by-you\n"}, "which the agent was to make"),
        ({"tests/test.sh": "./made-by-you\n"}, "which the agent was to make"),
        ({"tests/test.sh": "greet\n", "instruction.md": "Put a program `greet` into the PATH."}, "agent was to make"),
        ({"tests/test.sh": "[ -e /app/sum.txt ] && echo 'x: foo: command not found' && exit 127\n"}, "only after"),
        ({"tests/test.sh": "[ -e /app/sum.txt ] && exit 127; exit 126\n"}, "only after"),
    ],
)
def test_an_agent_cannot_get_out_of_a_bad_reward_by_a_missing_program(
    folder: Path, files: dict[str, str], noted: str
) -> None:
    a_task(folder / "tasks" / "shared", **files)
    only = {"tasks.args": {"path": "tasks", "build": False, "only": ["shared"]}}
    run = agentrl.rollout(folder, 1, script="oracle", out=folder / "out", overrides=only, reporters=())
    (episode,) = run.whole_episodes()
    assert episode.reward == 0.0
    assert noted in episode.notes["harbor"]


@pytest.mark.slow
@pytest.mark.family("harbor")
def test_a_check_says_what_is_left_to_the_image_and_what_was_left_out(folder: Path) -> None:
    a_task(folder / "tasks" / "apart", **{"task.toml": TOML + "gpus = 1"})
    more = "{skip: true, network: none, path: tasks, build: false}"
    found = check(str(folder), [f"tasks.args={more}", "sandbox.use=namespace"]).warnings
    assert "tasks: left out 1, because it asks for GPUs (environment.gpus): apart" in found
    assert "left to the image, and not run: apt-get install -y jq (object, shared)" in found
    a_task(folder / "tasks" / "shared", **{"tests/test.sh": "#!/bin/bash\nno-such-grader --all\n"})
    found = check(str(folder), [f"tasks.args={more}", "sandbox.use=namespace"]).warnings
    assert any(each.startswith("test.sh of shared calls no-such-grader") for each in found)


def test_why_there_is_no_task(folder: Path) -> None:
    """Each cause with the tasks of which it is true."""
    a_task(folder / "tasks" / "apart", **{"task.toml": TOML + "gpus = 1"})
    a_task(folder / "tasks" / "object", **{"task.toml": TOML + "gpus = 1"})
    a_task(folder / "tasks" / "shared", **{"task.toml": TOML.replace(":-10}", "}")})
    with pytest.raises(
        TaskError, match=r"no task; left out 2, because it asks for GPUs.*: apart, object; left out 1,.*not s"
    ):
        tasks(folder, skip=True)


@pytest.mark.parametrize(
    ("script", "called"),
    [
        ("#!/bin/bash\nset -e\ncd /app\npytest -q\n", {"pytest"}),
        ("FOO=1 uvx \\\n  --with pytest \\\n  pytest /tests\n", {"uvx"}),
        ("python3 - <<'END'\nimport json\nEND\njq . x\n", {"python3", "jq"}),
        ("python3 -c '\nimport json\nprint(1)\n'\n", {"python3"}),
        ("check() {\n  grep x y\n}\ncheck\n", {"grep"}),
        ("if diff a b; then\n  echo 1 > r\nelse\n  echo 0 > r\nfi\n", set()),
        ("A=$(cat x)\n# rewardkit\n$A run\n/usr/bin/env x\n", set()),
    ],
)
def test_the_programs_of_a_script(tmp_path: Path, script: str, called: set[str]) -> None:
    """Those that stand first in a line: no text in quotes, here-documents, comments or functions."""
    (tmp_path / "test.sh").write_text(script)
    assert called_in(tmp_path / "test.sh") == called


@pytest.mark.parametrize(
    ("said", "program"),
    [
        ("/tests/test.sh: line 3: rewardkit: command not found", "rewardkit"),
        ("sh: 1: jq: not found", "jq"),
        ("env: 'node': No such file or directory", "node"),
        ("/tests/test.sh: line 2: ./run: Permission denied\n", "./run"),
        ("a: command not found\nb: command not found", "b"),
        ("exit 127", ""),
    ],
)
def test_the_program_that_a_shell_misses(said: str, program: str) -> None:
    assert program_in(said) == program


def test_folders_that_are_none(folder: Path) -> None:
    (folder / "tasks" / "shared" / "instruction.md").unlink()
    with pytest.raises(TaskError, match=r"there is no instruction\.md"):
        tasks(folder)
    with pytest.raises(TaskError, match=r"(?s)there is no folder .*elsewhere"):
        tasks(folder, path="elsewhere")
    with pytest.raises(AgentRLError, match="takes no argument 'files'"):
        tasks(folder, files="x")
    with pytest.raises(AgentRLError, match="takes no argument 'exclude'"):
        tasks(folder, exclude=["shared"])


@pytest.mark.slow
@pytest.mark.family("harbor")
def test_a_reward_of_several_names_needs_a_key(folder: Path) -> None:
    scored = TEST.replace(
        "1 > /logs/verifier/reward.txt", '\'{"right": 1, "speed": 0.5}\' > /logs/verifier/reward.json'
    )
    a_task(folder / "tasks" / "object", **{"tests/test.sh": scored})
    one = {"tasks.args": {"path": "tasks", "only": ["object"]}}
    run = agentrl.rollout(folder, 1, script="oracle", out=folder / "several", overrides=one, reporters=())
    (episode,) = run.whole_episodes()
    assert episode.reward == 0.0  # the agent may have added the second
    assert "reward.json has no 'reward', but right, speed: set rewards.harbor.key" in episode.notes["harbor"]
    keyed = {**one, "rewards.harbor.key": "speed"}
    run = agentrl.rollout(folder, 1, script="oracle", out=folder / "keyed", overrides=keyed, reporters=())
    assert [episode.reward for episode in run.episodes] == [0.5]


def test_a_dockerfile_as_steps(tmp_path: Path) -> None:
    environment = a_task(tmp_path) / "environment"
    plan = plan_of(environment / "Dockerfile")
    assert plan.steps == [
        RunStep('mkdir -p /app/made && echo "a && b" > /app/made/quoted', "/"),
        Copy((environment / "numbers.txt", environment / "run.sh"), "/app", into=True, mode="755"),
        Copy((environment / "sub",), "/app/data", into=True),
        RunStep("echo heredoc > /app/made/here", "/app"),
    ]
    assert (plan.workdir, plan.writable) == ("/app", {"/app"})
    assert [root_of(path) for path in ("/app/x", "/home/me/x", "/usr/x", "/")] == ["/app", "/home/me", "", ""]


def test_the_oracle_without_a_solution_says_so(folder: Path) -> None:
    (folder / "tasks" / "shared" / "solution" / "solve.sh").unlink()
    from agentrl.integrations.harbor.tasks import oracle

    (task,) = tasks(folder, only=["shared"])
    assert [*oracle(task, random.Random(0))] == [Say("Done.")]
    assert read_task_toml(folder / "tasks" / "shared").verifier.timeout_sec == 20.0
