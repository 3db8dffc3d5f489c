"""Start, discovery and ownership of processes in the toolbox.

Ownership: processes of a job descend from its leader or, once orphaned, are children of PID 1 with the job's mark.
Orphans without a mark have no owner and are killed with the next job.

The mark is a resource limit without effect: RLIMIT_LOCKS, which Linux ignores. The toolbox sets its own to the number
of the job while it starts the leader, and programs inherit it. The seccomp filter keeps programs from changing it: it
requires a secret in registers that the call does not use. (A mark without a secret would have to be set between fork
and exec, which Python can only do in a copy of the toolbox: that doubles the time of a command.)
"""

# ruff: noqa: SIM105 - contextlib would cost an import at the start of every sandbox
from __future__ import annotations

import posix as os
import sys
import time

TYPE_CHECKING = False  # `typing` would take longer to import than Python to start
if TYPE_CHECKING:
    import signal

    Living = dict[int, tuple[int, int]]
    """Parent's pid and start (ticks since boot) of processes, by pid."""
else:
    import _signal as signal

LOCKS, NAME = 10, b"Max file locks"  # the limit used as a mark, and its name in /proc
PRLIMIT = 302 if os.uname().machine == "x86_64" else 261
BLANK = b"a secret"  # placeholder of the secret in the filter
CHUNK = 1 << 16
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)  # by the toolbox

VICTIM, EARLY_VICTIM = b"1000", b"500"  # oom_score_adj of programs, and of those they fork before it is set


def launch(argv: list[str], cwd: str, env: dict[str, str], fds: dict[int, int], mark: int) -> int:
    """Starts a program and returns its pid; `fds` maps its descriptors to ours. Raises OSError."""
    os.chdir(cwd)
    marks.put(mark)
    try:
        for folder in [""] if "/" in argv[0] else env.get("PATH", "/usr/bin:/bin").split(":"):
            program = folder + "/" + argv[0] if folder else argv[0]
            if not os.access(program, os.F_OK):  # cheaper than a failed child
                continue
            try:
                return start(program, argv, env, fds)
            except (FileNotFoundError, NotADirectoryError):
                pass
        raise FileNotFoundError(2, "command not found", argv[0])
    finally:
        os.chdir("/")


def start(program: str, argv: list[str], env: dict[str, str], fds: dict[int, int]) -> int:
    """Spawns a program in a new session, so that signals to its group or session do not reach the toolbox."""
    actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in fds.items()]
    own_score.lower()
    try:
        return os.posix_spawn(program, argv, env, file_actions=actions, setsid=True, setsigdef=IGNORED)
    finally:
        own_score.restore()


class Marks:
    """Mark of the toolbox, inherited by programs that it starts."""

    def __init__(self) -> None:
        import _ctypes

        class Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
            _type_ = "Q"

        self.secret = os.urandom(len(BLANK) - 1) + b"\1"  # upper half not 0, unlike in 32-bit programs
        libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program and what it is linked to
        self.call, self.syscall = _ctypes.call_function, _ctypes.dlsym(libc, "syscall")
        number, own, which = (Word(value) for value in (PRLIMIT, 0, LOCKS))
        self.head, self.tail = (number, own, which), (None, 0, Word(int.from_bytes(self.secret, sys.byteorder)))

    def fill(self, code: bytes) -> bytes:
        """Fills the secret into a filter; the filter compares words of four bytes."""
        return code.replace(BLANK[:4], self.secret[:4]).replace(BLANK[4:], self.secret[4:])

    def put(self, number: int) -> None:
        """Sets the mark of programs started from now on. No effect if the hard limit is lower."""
        limits = number.to_bytes(8, sys.byteorder) + b"\xff" * 8  # struct rlimit64: the hard limit stays infinite
        self.call(self.syscall, (*self.head, limits, *self.tail))


marks = Marks()


def mark_of(pid: int) -> int | None:
    """Returns the mark of a process; None if it has none."""
    for line in read_proc(pid, "limits").splitlines():
        if line.startswith(NAME):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    return None


def processes() -> Living:
    """Maps pid to (parent's pid, start in ticks since boot) for all living processes except the toolbox.

    A zombie with other threads counts as living: only its main thread has exited.
    """
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            stat = read_proc(name, "stat")
            fields = stat[stat.rfind(b")") + 2 :].split()
            if len(fields) > 19 and (fields[0] not in (b"Z", b"X") or int(fields[17]) > 1):
                found[int(name)] = int(fields[1]), int(fields[19])
    return found


def read_proc(pid: int | str, name: str) -> bytes:
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
        try:
            return os.read(fd, CHUNK)
        finally:
            os.close(fd)
    except OSError:
        return b""


class OwnScore:
    """OOM score of the toolbox, inherited by programs that it starts."""

    def __init__(self) -> None:
        # The file stays open: the undumpable toolbox could not reopen it.
        self.fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self.own = os.pread(self.fd, 16, 0)

    def lower(self) -> None:
        """Makes programs started now OOM victims before the toolbox, and after all running programs.

        The kernel skips a program that still shares the toolbox's memory, so that the toolbox is not killed with it.
        """
        os.pwrite(self.fd, EARLY_VICTIM, 0)

    def restore(self) -> None:
        os.pwrite(self.fd, self.own, 0)


own_score = OwnScore()


class Offers:
    """Pending OOM scores of programs: the kernel shall kill them and their later children first.

    At the end of its exec a program is still undumpable like the toolbox, which cannot write its score then. So each
    write is delayed by a moment; many programs exit before. An unreadable program stays undumpable and keeps its
    inherited score.
    """

    EARLY_S, LATE_S = 0.001, 0.2

    def __init__(self) -> None:
        self.open: dict[int, float] = {}  # pid: start time

    def add(self, pid: int) -> None:
        self.open[pid] = time.monotonic()

    def drop(self, pid: int) -> None:
        self.open.pop(pid, None)

    def settle(self) -> bool:
        """Writes the scores that are due; returns True if some remain."""
        now = time.monotonic()
        for pid, since in list(self.open.items()):
            if now - since < self.EARLY_S:
                break
            if offer(pid) or now - since > self.LATE_S:
                self.drop(pid)
        return bool(self.open)


def offer(pid: int) -> bool:
    """Writes the OOM score of a process. Returns False if the write must be retried."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, VICTIM)
        finally:
            os.close(fd)
    except PermissionError:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None  # already exited
    except OSError:
        pass  # already exited
    return True


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
