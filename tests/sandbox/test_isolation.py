"""What a sandbox cannot see or do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.types.sandbox import SandboxSpec

pytestmark = pytest.mark.slow


async def test_host_files_are_out_of_sight(sandbox: NamespaceSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    for path in (str(secret), __file__, "/etc/shadow", "/root", "/home", "/proc/1/root/etc/shadow", "/sys/kernel"):
        assert not (await sandbox.exec(["ls", path])).ok, path
    entries = set((await sandbox.exec(["ls", "-A", "/"])).text.split())
    assert entries <= {
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "run",
        "sbin",
        "tmp",
        "usr",
        "work",
    }


async def test_only_its_own_folders_are_writable(sandbox: NamespaceSandbox) -> None:
    for folder in ("/", "/usr", "/etc", "/dev", "/run", "/run/agentrl", "/proc/sys/kernel", "/usr/bin"):
        assert not (await sandbox.exec(f"echo x > {folder}/made-by-a-test")).ok, folder
    assert not (await sandbox.exec("echo x > /proc/sys/kernel/hostname")).ok
    for folder in ("/work", "/tmp", "/dev/shm"):
        assert (await sandbox.exec(f"echo x > {folder}/made && rm {folder}/made")).ok, folder


async def test_the_user_has_no_power(sandbox: NamespaceSandbox) -> None:
    status = (await sandbox.exec(["cat", "/proc/self/status"])).text
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["1000"] * 4
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapInh"], 16) == 0
    assert fields["NoNewPrivs"].strip() == "1"
    assert not (await sandbox.exec(["unshare", "--user", "true"])).ok
    assert not (await sandbox.exec("mount -t tmpfs none /tmp")).ok
    assert not (await sandbox.exec(["chown", "0", "/work"])).ok


async def test_the_hosts_user_is_not_root(backend: NamespaceBackend) -> None:
    if os.geteuid() != 0 or not backend.capabilities or not backend._host.drops:
        pytest.skip("only root can drop to another user")
    sandbox = await backend.create(SandboxSpec())
    assert os.stat(f"/proc/{sandbox._tree.init_pid}").st_uid == 65534


async def test_no_network(sandbox: NamespaceSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in ("127.0.0.1", "10.0.0.1"):
            code = f"import socket; socket.create_connection(('{address}', {port}), timeout=2)"
            assert not (await sandbox.exec(["python3", "-c", code])).ok, address
    interfaces = (await sandbox.exec(["cat", "/proc/net/dev"])).text.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]


async def test_host_abstract_sockets_are_out_of_reach(sandbox: NamespaceSandbox) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        name = f"agentrl-test-{os.getpid()}"
        server.bind("\0" + name)
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        assert b"refused" in (await sandbox.exec(["python3", "-c", code])).stderr


async def test_no_descriptor_of_the_host_leaks(backend: NamespaceBackend) -> None:
    kept = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        sandbox = await backend.create(SandboxSpec())
    finally:
        os.close(kept)
    assert "test_isolation" not in (await sandbox.exec("ls -l /proc/self/fd /proc/1/fd")).text
    kinds = (await sandbox.exec(["ls", "/proc/self/fd"])).text.split()
    assert set(kinds) <= {"0", "1", "2", "3"}  # 3 is the folder that ls reads


async def test_two_sandboxes_share_nothing(backend: NamespaceBackend) -> None:
    one, two = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
    for folder in ("/work", "/tmp", "/dev/shm"):
        await one.write(f"{folder}/canary", "x")
        assert await two.list(folder) == []
    await (await one.session()).run("sleep 1004 &")
    assert "1004" not in (await two.exec("cat /proc/[0-9]*/cmdline")).text
    await (await two.session()).run("kill -9 -1")
    assert (await one.health()).alive
    assert (await (await one.session()).run("jobs")).text.count("1004") == 1


async def test_killing_everything_inside_does_not_kill_the_toolbox(sandbox: NamespaceSandbox) -> None:
    await sandbox.exec("kill -9 -1")
    await sandbox.exec("kill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1; kill -USR1 1")
    assert (await sandbox.exec("echo alive")).text == "alive\n"
