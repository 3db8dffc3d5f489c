"""`agentrl doctor`: checks the capabilities of this machine, and prints the command that adds a missing one.

Imports nothing heavy: `make setup` runs it to install bubblewrap.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.types.distribution import DISTRIBUTION, __version__, pip_install


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report. `fix` is a command, or empty."""

    what: str
    ok: bool
    found: str
    fix: str = ""


def _python() -> Diagnosis:
    ok = sys.version_info >= (3, 11)
    return Diagnosis("Python 3.11 or newer", ok, sys.version.split()[0], "" if ok else "install python3.11 or newer")


def _package(module: str, purpose: str, fix: str) -> Callable[[], Diagnosis]:
    def look() -> Diagnosis:
        ok = importlib.util.find_spec(module) is not None
        return Diagnosis(f"{module} ({purpose})", ok, "installed" if ok else "missing", "" if ok else fix)

    return look


def _versions() -> Diagnosis:
    """Checks the versions of the optional packages."""
    from agentrl.types.packages import extras, installed

    packages = {found.name: found for extra in reversed(extras()) for found in installed(extra)}.values()
    wrong = [found for found in packages if found.too_old or found.too_new]
    said = ", ".join(f"{found.name} {found.version} ({found.extra} wants {found.wanted})" for found in wrong)
    fix = "pip install " + " ".join(f"'{found.wanted}'" for found in wrong) if wrong else ""
    return Diagnosis("versions of optional packages", not wrong, said or f"{len(packages)} packages fit", fix)


def _distribution() -> Diagnosis:
    """Checks that the distribution `agentrl`, which is another project's, is not installed in place of this one."""
    from importlib import metadata

    what = f"{DISTRIBUTION} (this package, for pip)"
    try:
        stranger = metadata.metadata("agentrl")
    except metadata.PackageNotFoundError:
        return Diagnosis(what, True, __version__)
    found = f"{stranger['Name']} {stranger['Version']} is installed too: another project, or this one by an old name"
    fix = f"pip uninstall -y agentrl && pip install --force-reinstall --no-deps {DISTRIBUTION}"
    return Diagnosis(what, False, found, fix)


def _bubblewrap() -> Diagnosis:
    path = shutil.which("bwrap")
    return Diagnosis(
        "bubblewrap (namespace sandbox)", path is not None, path or "missing", "" if path else install_command()
    )


def _debootstrap() -> Diagnosis:
    path = shutil.which("debootstrap")
    fix = "" if path else "apt-get install -y debootstrap"
    return Diagnosis("debootstrap (agentrl sandbox build)", path is not None, path or "missing", fix)


def _namespaces() -> Diagnosis:
    what = "namespaces (namespace sandbox)"
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return Diagnosis(what, False, "needs bubblewrap", install_command())
    ran = subprocess.run(
        [bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "/bin/true"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    if ran.returncode == 0:
        return Diagnosis(what, True, "work")
    fix = "as root: sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
    return Diagnosis(what, False, ran.stderr.strip() or f"bwrap exited with {ran.returncode}", fix)


def _engine() -> Diagnosis:
    """Checks that a container engine answers."""
    what = "container engine (docker sandbox)"
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    start = "apt-get install -y docker.io && (systemctl start docker || dockerd &)  (as root)"
    if importlib.util.find_spec("docker") is None:
        return Diagnosis(what, False, "the package docker is missing", pip_install("docker"))
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(5)
        try:
            link.connect(host.removeprefix("unix://"))
        except PermissionError:
            return Diagnosis(
                what, False, f"no permission for {host}", "sudo usermod -aG docker $USER, and log in again"
            )
        except OSError:
            return Diagnosis(what, False, f"none at {host}", start)
    return Diagnosis(what, True, host)


def _limits() -> Diagnosis:
    """Checks that the memory, processes and processor time of a whole sandbox can be limited."""
    from agentrl.sandbox.linux.cgroups import found_family
    from agentrl.sandbox.owner import new_label

    what = "limits of whole sandboxes (namespace sandbox)"
    family = found_family(new_label())
    if family is not None:
        family.close()
        return Diagnosis(what, True, family.means + ("" if family.cpu else ", not of processor time"))
    fix = "run as root, or in a delegated group: systemd-run --user --scope -p Delegate=yes agentrl ..."
    return Diagnosis(what, False, "no writable control group: limits hold per process only", fix)


def _seccomp() -> Diagnosis:
    """Checks that system calls can be filtered."""
    from agentrl.sandbox.linux.seccomp import filter_program

    found = filter_program() is not None
    fix = "" if found else install_command().replace("bubblewrap", "libseccomp2")
    what = "libseccomp (sandboxes: filter of system calls)"
    return Diagnosis(what, found, "installed" if found else "missing", fix)


def _chromium() -> Diagnosis:
    """Checks that the web tool has a browser and its driver."""
    from agentrl.tools.builtin.web.launching import find_chromium
    from agentrl.types.errors import AgentRLError

    what = "Chromium (web tool)"
    try:
        return Diagnosis(what, True, find_chromium())
    except AgentRLError as error:
        return Diagnosis(what, False, error.message, error.remedy or "")


def _desktop() -> Diagnosis:
    """Checks that this machine can run desktops."""
    from agentrl.tools.builtin.gui.desktop import install, missing_program

    missing = missing_program(elements=True)
    found = "installed" if missing is None else f"{missing} is missing"
    return Diagnosis("Xvfb, openbox (gui tool)", missing is None, found, "" if missing is None else install(missing))


def _threads() -> Diagnosis:
    value = os.environ.get("OMP_NUM_THREADS", "")
    ok = value == "1"
    fix = "export OMP_NUM_THREADS=1 (more is far slower when processes share the cores)"
    return Diagnosis("OMP_NUM_THREADS", ok, value or "unset", "" if ok else fix)


def _gpu() -> Diagnosis:
    if importlib.util.find_spec("torch") is None:
        return Diagnosis("GPU", True, "torch is not installed")
    import torch

    found = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none: models run on the CPU"
    return Diagnosis("GPU", True, found)


CHECKS: list[Callable[[], Diagnosis]] = [
    _python,
    _distribution,
    _bubblewrap,
    _namespaces,
    _limits,
    _seccomp,
    _debootstrap,
    _engine,
    _package("torch", "training, torch engine", f"pip install torch==2.13.0 '{DISTRIBUTION}[train]'"),
    _package("transformers", "training, torch engine", pip_install("train")),
    _package("gguf", "GGUF models", pip_install("gguf")),
    _package("bm25s", "search tool", pip_install("search")),
    _package("trafilatura", "http tool", pip_install("http")),
    _versions,
    _chromium,
    _desktop,
    _threads,
    _gpu,
]


def examine() -> list[Diagnosis]:
    """All findings."""
    return [check() for check in CHECKS]


def install_command() -> str:
    """Returns the command that installs bubblewrap on this machine."""
    for manager, command in (
        ("apt-get", "apt-get install -y bubblewrap"),
        ("dnf", "dnf install -y bubblewrap"),
        ("apk", "apk add bubblewrap"),
        ("pacman", "pacman -S --noconfirm bubblewrap"),
    ):
        if shutil.which(manager):
            return command if os.geteuid() == 0 else f"sudo {command}"
    return "install the package bubblewrap"


def install_bubblewrap() -> int:
    """Installs a missing bubblewrap if run as root; else prints the command. For `make setup`."""
    if shutil.which("bwrap"):
        return 0
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        done = subprocess.run(["apt-get", "install", "-y", "-qq", "bubblewrap"], check=False)
        return done.returncode
    print(f"bubblewrap is missing; the sandbox needs it. Run: {install_command()}", file=sys.stderr)
    return 1


if __name__ == "__main__" and "--install-bubblewrap" in sys.argv:
    sys.exit(install_bubblewrap())
