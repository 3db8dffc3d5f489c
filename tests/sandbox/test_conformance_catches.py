"""A test of the tests: backends that are broken in one way each, which the conformance suite must notice."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrl.sandbox.conformance import Arena, checks, run_check
from agentrl.sandbox.linux import seccomp
from agentrl.sandbox.linux.cgroups import Cgroup
from agentrl.sandbox.namespace import rootfs
from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.sandbox.toolbox import carry, egress
from agentrl.sandbox.toolbox.archives import Archive
from agentrl.sandbox.toolbox.session import ToolboxShell
from agentrl.types.paths import data_path
from agentrl.types.sandbox import ExecResult, SandboxSpec

pytestmark = [pytest.mark.slow, pytest.mark.family("sandbox")]

Patch = Callable[[pytest.MonkeyPatch, Path], type[NamespaceBackend]]
BROKEN: dict[str, tuple[Patch, list[str]]] = {}
"""What is broken: how, and the checks that must fail."""


def broken(*names: str) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        BROKEN[patch.__name__] = patch, [name.replace("_", "-") for name in names]
        return patch

    return register


def other_toolbox(monkeypatch: pytest.MonkeyPatch, folder: Path, file: str, old: str, new: str) -> None:
    """Sandboxes get a toolbox in which a passage is replaced."""
    other_program(monkeypatch, rootfs, folder, f"toolbox/{file}", old, new)


def other_program(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, folder: Path, file: str, old: str, new: str
) -> None:
    """A module finds a copy of `/tools`, in which a passage of a file is replaced."""
    tools = folder / "tools"
    shutil.copytree(data_path("tools"), tools)
    text = (tools / file).read_text()
    assert text.count(old) == 1, f"{file} no longer holds {old!r}"
    (tools / file).write_text(text.replace(old, new))
    monkeypatch.setattr(module, "data_path", lambda *parts: folder / Path(*parts))


@broken("children_die_at_the_end", "children_die_at_a_timeout", "cancel_mid_exec")
def kills_only_the_client(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old = "            if (pid == job.pid and pid in self.leaders) or (start"
    new = "            if (pid == job.pid and pid in self.leaders)]\n        [pid for pid, (_, start) in () if (start"
    other_toolbox(monkeypatch, folder, "toolbox.py", old, new)
    return NamespaceBackend


@broken("nobody_takes_anothers_name")
def lets_programs_set_marks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    monkeypatch.setattr(seccomp, "mark_filter", lambda: b"")
    return NamespaceBackend


@broken("neighbours_of_a_command_live")
def gives_no_marks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    other_toolbox(monkeypatch, folder, "processes.py", "    marks.put(mark)\n", "")
    return NamespaceBackend


@broken("one_megabyte_of_output")
def drains_after_exit(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old = "            box.watch(fd, select.POLLIN, self.reader(fd))"
    new = "            os.set_blocking(fd, False)"
    other_toolbox(monkeypatch, folder, "jobs.py", old, new)
    return NamespaceBackend


@broken("partial_output_on_timeout")
def loses_output_at_a_timeout(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    async def exec(self: NamespaceSandbox, *args: Any, **settings: Any) -> ExecResult:
        result = await NamespaceSandbox.exec(self, *args, **settings)
        return ExecResult(None, "timeout") if result.outcome == "timeout" else result

    return with_sandbox(exec=exec)


@broken("toolbox_out_of_reach", "dangerous_calls_refused")
def forgets_the_filter(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    other_toolbox(monkeypatch, folder, "toolbox.py", '    filter_calls(HERE + "/filter.bpf")\n', "")
    return NamespaceBackend


@broken("programs_go_first", "hidden_memory")
def is_no_better_than_its_programs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    other_toolbox(monkeypatch, folder, "processes.py", 'EARLY_VICTIM = b"1000", b"500"', 'EARLY_VICTIM = b"0", b"0"')
    return NamespaceBackend


@broken("tcp_memory")
def forgets_sockets(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    monkeypatch.setattr(Cgroup, "limit_tcp", lambda self, memory_mb: None)
    return NamespaceBackend


@broken("no_network")
def leaves_the_network_on(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    monkeypatch.setattr(rootfs, "_NAMESPACES", tuple(word for word in rootfs._NAMESPACES if word != "--unshare-net"))
    return NamespaceBackend


@broken("only_what_is_allowed")
def opens_the_network_where_some_is_allowed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    return leaves_the_network_on(monkeypatch, folder)


@broken("only_what_is_allowed")
def forgets_the_list_of_hosts(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old = "        port in ports and "
    other_program(monkeypatch, egress, folder, "egress/proxy.py", old, "        True or ")
    return NamespaceBackend


@broken("requests_are_read_in_one_way")
def reads_requests_loosely(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old = " or not all(map(FIELD.fullmatch, fields))"
    other_program(monkeypatch, egress, folder, "egress/proxy.py", old, "")
    return NamespaceBackend


@broken("shell_is_not_confused")
def believes_markers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    class MarkedShell(ToolboxShell):
        async def run(self, command: str, timeout_s: float = 60.0, output_limit: int = 1 << 20) -> ExecResult:
            result = await super().run(f"{command}\necho ___END___$?", timeout_s, output_limit)
            output, _, code = result.stdout.partition(b"___END___")
            digits = code.split(b"\n")[0]
            return ExecResult(int(digits) if digits.isdigit() else None, "ok", output)

    async def session(self: NamespaceSandbox, name: str = "main") -> ToolboxShell:
        return self._sessions.setdefault(("shell", name), MarkedShell(self, name))  # type: ignore[return-value]

    return with_sandbox(session=session)


@broken("host_files_out_of_reach", "path_traversal", "symlink_escape")
def reads_from_the_host(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    async def read(self: NamespaceSandbox, path: str, *, limit: int = 64 << 20) -> bytes:
        root = Path(f"/proc/{self._tree.init_pid}/root")
        inside = Path(os.path.normpath(self._path(path)))
        link = root / inside.relative_to("/")
        return (Path(os.readlink(link)) if link.is_symlink() else inside if inside.exists() else link).read_bytes()

    return with_sandbox(read=read)


@broken("get_stays_in_its_folder")
def lets_links_lead_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old, new = "if self.bounds.bounded and not inside:", "if False:"
    other_program(monkeypatch, carry, folder, "toolbox/carry.py", old, new)
    return NamespaceBackend


@broken("traps_where_a_file_was_expected")
def reads_without_a_bound(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    other_toolbox(
        monkeypatch, folder, "toolbox.py", "about.st_size <= limit and len(data) <= min(limit, PIECE)", "True"
    )
    return NamespaceBackend


@broken("writing_reaches_no_pipe_of_the_toolbox")
def writes_into_its_own_pipes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old, new = "            regular(fd)\n            os.ftruncate(fd, 0)\n            os.fchmod(fd, mode)\n", ""
    other_toolbox(monkeypatch, folder, "toolbox.py", old, new)
    return NamespaceBackend


@broken("nothing_of_the_last_one")
def reuses_dirty_sandboxes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    class Reusing(NamespaceBackend):
        used: list[NamespaceSandbox]

        async def create(self, spec: SandboxSpec, *, label: str = "") -> NamespaceSandbox:
            kept = self.__dict__.setdefault("used", [])
            if kept:
                return kept.pop()
            sandbox = await super().create(spec, label=label)

            async def close() -> None:
                kept.append(sandbox)

            monkeypatch.setattr(sandbox, "close", close)
            return sandbox

        async def close(self) -> None:
            monkeypatch.undo()
            await super().close()

    return Reusing


@broken("environment_and_user")
def leaks_the_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    small = rootfs._environment
    monkeypatch.setattr(rootfs, "_environment", lambda spec: {**os.environ, **small(spec)})
    return NamespaceBackend


@broken("memory_bomb", "oom_is_no_other_end")
def takes_oom_for_a_signal(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    return with_sandbox(oom_kills=lambda self: None)


@broken("toolbox_cannot_be_traced")
def leaves_the_toolbox_open(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    other_toolbox(monkeypatch, folder, "toolbox.py", "    guard()\n", "")
    return NamespaceBackend


@broken("kernel_settings_cannot_be_written")
def leaves_settings_open(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    monkeypatch.setattr(rootfs.Host, "_masks", lambda self: [])
    return NamespaceBackend


@broken("dangerous_calls_refused")
def filters_no_calls(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    known = NamespaceBackend().capabilities
    monkeypatch.setattr(seccomp, "filter_program", lambda: None)
    monkeypatch.setattr(NamespaceBackend, "capabilities", known)
    return NamespaceBackend


@broken("arguments_exact")
def quotes_by_hand(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    async def exec(self: NamespaceSandbox, command: str | Sequence[str], **settings: Any) -> ExecResult:
        text = command if isinstance(command, str) else " ".join(command)
        return await NamespaceSandbox.exec(self, ["sh", "-c", f"({text})"], **settings)

    return with_sandbox(exec=exec)


@broken("a_bad_spec_is_refused_beforehand")
def promises_everything(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    return type("Broken", (NamespaceBackend,), {"preflight": lambda self, spec: None})


@broken("snapshots_are_exact")
def loses_a_deletion(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    async def restore(self: NamespaceSandbox, ref: str) -> None:
        now = (await self.exec("tar -cf - .")).stdout
        await NamespaceSandbox.restore(self, ref)
        await self.exec("tar --skip-old-files -xf -", stdin=now)

    return with_sandbox(restore=restore)


@broken("snapshots_are_exact")
def forks_what_was_first_kept(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    kept: list[Archive] = []

    async def keep(self: NamespaceSandbox) -> Archive:
        if not kept:
            kept.append(await NamespaceSandbox.keep(self))
        return kept[0]

    return with_sandbox(keep=keep)


@broken("snapshots_are_exact")
def loses_hard_links(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    other_program(monkeypatch, rootfs, folder, "snapshot/archive.py", "if about.st_nlink > 1:", "if False:")
    return NamespaceBackend


@broken("snapshots_are_exact")
def loses_times(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old = "    os.utime(what, ns=(times, times))\n"
    other_program(monkeypatch, rootfs, folder, "snapshot/archive.py", old, "")
    return NamespaceBackend


@broken("snapshots_are_exact")
def loses_modes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> type[NamespaceBackend]:
    old, new = "os.chmod(what, mode)", "os.chmod(what, mode | 0o044)"
    other_program(monkeypatch, rootfs, folder, "snapshot/archive.py", old, new)
    return NamespaceBackend


def with_sandbox(**methods: Any) -> type[NamespaceBackend]:
    """A backend whose sandboxes have other methods."""
    made = type("Broken", (NamespaceSandbox,), methods)

    class Backend(NamespaceBackend):
        async def create(self, spec: SandboxSpec, *, label: str = "") -> NamespaceSandbox:
            sandbox = await super().create(spec, label=label)
            sandbox.__class__ = made
            return sandbox

    return Backend


@pytest.fixture
async def arena(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Arena]:
    patch: Patch = request.param
    backend = patch(monkeypatch, tmp_path)()
    yield Arena(backend, "namespace")
    await backend.close()


CASES = [pytest.param(patch, name, id=f"{patch.__name__}:{name}") for patch, names in BROKEN.values() for name in names]


@pytest.mark.parametrize(("arena", "name"), CASES, indirect=["arena"])
async def test_it_is_caught(arena: Arena, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = await run_check(checks()[name], arena)
    assert finding.status == "fail", f"{name}: {finding}"


async def test_reaping_that_forgets_is_caught(monkeypatch: pytest.MonkeyPatch, public_folder: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(public_folder))  # where no other backend of this machine reaps
    monkeypatch.setattr(tempfile, "tempdir", None)

    async def reap(*, dry: bool = False) -> list[str]:
        return []

    backend = NamespaceBackend()
    whole = backend.reap
    monkeypatch.setattr(backend, "reap", reap)
    finding = await run_check(checks()["a-killed-driver-leaves-nothing"], Arena(backend, "namespace"))
    assert finding.status == "fail"
    assert "left after reaping" in finding.detail
    await whole()
    await backend.close()
