"""Control groups: version 1 as this machine has it (the conformance suite); version 2 by its files, in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from agentrl.sandbox.linux import cgroups
from agentrl.sandbox.linux.cgroups import Cgroup, CgroupLimits, found_family, reap_groups
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


def group_of(folder: Path, **files: str) -> Cgroup:
    """A group of version 2 with some of its files: the name of each has `_` for the dot."""
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return Cgroup((str(folder),), str(folder), 2)


def test_a_group_that_is_gone_counts_nothing(tmp_path: Path) -> None:
    gone = group_of(tmp_path / "gone")
    assert (gone.oom_kills(), gone.cpu_s(), gone.memory_mb()) == (None, None, 0.0)
    assert not gone.is_full()
    assert not gone.was_full()


def test_version_2_counts_processor_time(tmp_path: Path) -> None:
    assert group_of(tmp_path, cpu_stat="usage_usec 2500000\nuser_usec 2000000\n").cpu_s() == 2.5
    assert group_of(tmp_path, cpu_stat="nr_periods 0\n").cpu_s() is None


def test_a_kernel_without_a_peak_leaves_open_whether_a_group_was_full(tmp_path: Path) -> None:
    """Version 2 records the peak since Linux 5.19. Before, the count of kills alone decides who is to blame."""
    group = group_of(tmp_path, memory_max="1000", memory_current="10")
    assert group.was_full()
    assert not group.is_full()
    assert not group_of(tmp_path, memory_peak="900").was_full()
    assert group_of(tmp_path, memory_peak="950").was_full()
    assert not group_of(tmp_path, memory_max="max").was_full()


def test_all_processes_of_a_group_are_killed_also_after_one_that_has_just_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        killed.append((pid, number))
        if pid == 71:
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    group_of(tmp_path, cgroup_procs="71\n72\n").kill()
    assert killed == [(71, signal.SIGKILL), (72, signal.SIGKILL)]


def test_a_group_that_another_owner_reaps_at_the_same_time_is_left_to_it(
    version_2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = version_2 / "agentrl-of-the-dead"
    left.mkdir()
    asked: list[str] = []

    def gone(folder: str) -> None:
        asked.append(folder)
        raise FileNotFoundError(folder)

    monkeypatch.setattr(cgroups, "is_alive", lambda label: label != "of-the-dead")
    monkeypatch.setattr(os, "rmdir", gone)
    assert reap_groups(root=str(version_2)) == [f"control group {left}"]
    assert asked == [str(left)], "it is not waited for"
