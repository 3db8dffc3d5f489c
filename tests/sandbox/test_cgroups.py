"""Control groups: version 1 as this machine has it (the conformance suite); version 2 by its files, in a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agentrl.sandbox.linux import cgroups
from agentrl.sandbox.linux.cgroups import CgroupLimits, found_family, reap_groups
from agentrl.sandbox.owner import is_alive, new_label


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the root of version 2. Files that the kernel would make are made on writing."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    monkeypatch.setattr(cgroups, "_put", lambda path, text: Path(path).write_text(text) and None)
    monkeypatch.setattr(cgroups, "_own_groups", lambda: [("0", [], "/")])
    return tmp_path


def test_version_2_writes_its_files(version_2: Path) -> None:
    family = found_family(new_label(), root=str(version_2))
    assert family is not None
    assert (family.means, family.cpu) == ("cgroup v2", True)
    assert (version_2 / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    group = family.create(CgroupLimits(memory_mb=64, pids=32, cpu=0.5))
    folder = Path(group.folders[0])
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "pids.max": "32",
        "cpu.max": "50000 100000",
    }
    group.add(77)
    assert (folder / "cgroup.procs").read_text() == "77"
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n")
    (folder / "memory.current").write_text(str(5 << 20))
    assert (group.oom_kills(), group.memory_mb()) == (2, 5.0)


def test_version_2_without_the_right_to_delegate_is_no_family(version_2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, text: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(cgroups, "_put", refuse)
    assert found_family(new_label(), root=str(version_2)) is None
    assert list(version_2.iterdir()) == [version_2 / "cgroup.controllers"]


@pytest.mark.slow
def test_only_what_dead_owners_left_is_reaped(version_2: Path) -> None:
    owner = subprocess.Popen(["sleep", "60"])
    birth = Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[19]
    label = f"{owner.pid}-{birth}-{os.stat('/proc/self/ns/pid').st_ino}-abcd"
    left = version_2 / f"agentrl-{label}"
    (left / "1").mkdir(parents=True)
    foreign = version_2 / "agentrl-of-somebody-else"
    foreign.mkdir()
    assert is_alive(label)
    assert reap_groups(root=str(version_2)) == []
    owner.kill()
    owner.wait()
    assert not is_alive(label)
    told = [f"control group {left}/1", f"control group {left}"]
    assert reap_groups(root=str(version_2), dry=True) == told
    assert left.exists()
    assert reap_groups(root=str(version_2)) == told
    assert not left.exists()
    assert foreign.exists()


def test_a_later_process_of_the_same_id_is_not_the_owner() -> None:
    label = new_label()
    assert is_alive(label)
    pid, birth, rest = label.split("-", 2)
    assert not is_alive(f"{pid}-{int(birth) + 1}-{rest}")
    assert is_alive("no label")
    assert is_alive(f"{pid}-{int(birth) + 1}-1-abcd"), "of another PID namespace: not ours to judge"
