"""`agentrl sandbox`: exit codes, streams, reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from agentrl.commands.sandbox import _by_kind
from agentrl.sandbox.conformance import checks

pytestmark = pytest.mark.slow

PLUG_IN = "agentrl.sandbox.namespace.backend:NamespaceBackend"


def sandbox(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "agentrl.cli", "sandbox", *words]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False)


def test_run_passes_streams_and_codes() -> None:
    done = sandbox("run", "namespace", "--", "sh", "-c", "cat; echo err >&2; exit 7", stdin=b"in\0\xff")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in\0\xff", b"err\n")
    late = sandbox("run", "namespace", "--timeout", "0.3", "--", "sleep", "60")
    assert (late.returncode, late.stderr) == (124, b"[ended by timeout]\n")


def test_check_reports_a_plug_in_by_reference() -> None:
    done = sandbox("check", PLUG_IN, "--only", "stdin-eof", "--only", "arguments-exact", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["failed"], report["backend"]) == (0, 0, PLUG_IN)
    assert [(each["name"], each["status"]) for each in report["checks"]] == [
        ("stdin-eof", "pass"),
        ("arguments-exact", "pass"),
    ]
    assert all(each["proves"] for each in report["checks"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("check", "namespace", "--only", "stdin-eot"), b"did you mean 'stdin-eof'?"),
        (("check", "namespce"), b"did you mean 'namespace'?"),
        (("check", "namespace", "--rootfs", "/no/such/folder"), b"sandbox.spec.rootfs: rootfs /no/such/folder"),
        (("run", "namespace", "--image", "debian:12", "--", "true"), b"sandbox.spec.image"),
    ],
)
def test_mistakes_are_told_with_a_remedy(words: tuple[str, ...], told: bytes) -> None:
    done = sandbox(*words)
    assert done.returncode == 1
    assert told in done.stderr
    assert b"->" in done.stderr
    assert b"Traceback" not in done.stderr


def test_checks_are_listed_without_a_backend() -> None:
    done = sandbox("check", "--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.decode().splitlines()] == list(checks())


def test_what_is_removed_is_told_by_kind() -> None:
    groups = [f"control group /sys/fs/cgroup/agentrl-{n}" for n in range(5)]
    assert _by_kind([*groups, "process 5", "process 6", "folder /tmp/a b", "lease 7"]) == [
        "5 control groups: /sys/fs/cgroup/agentrl-0, /sys/fs/cgroup/agentrl-1, /sys/fs/cgroup/agentrl-2 and 2 more",
        "2 processes: 5, 6",
        "1 folder: /tmp/a b",
        "1 lease: 7",
    ]


def test_a_failed_check_is_exit_code_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("plug-in")
    (folder / "broken.py").write_text(
        "from agentrl.sandbox.namespace.backend import NamespaceBackend\n"
        "class Broken(NamespaceBackend):\n"
        "    def preflight(self, spec):\n"
        "        pass\n"
    )
    done = sandbox("check", f"{folder}/broken.py:Broken", "--only", "a-bad-spec-is-refused-beforehand")
    assert done.returncode == 1
    assert b"1 failed" in done.stdout


def test_gc_removes_what_a_dead_owner_left(public_folder: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(public_folder))  # where no other backend of this machine reaps
    code = (
        "import os, signal, sys\n"
        "from agentrl.sandbox.namespace.backend import NamespaceBackend\n"
        "backend = NamespaceBackend(); backend.capabilities\n"
        "print(backend._host._folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    assert f"would remove 1 folder: {left}" in sandbox("gc", "--backend", "namespace", "--dry-run").stdout.decode()
    assert os.path.exists(left)
    assert f"removed 1 folder: {left}" in sandbox("gc", "--backend", "namespace").stdout.decode()
    assert not os.path.exists(left)
