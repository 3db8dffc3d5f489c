"""Toolbox: the init process of a sandbox. Runs programs, shells and Python kernels for the host.

Needs Linux and the standard library of any Python 3.9+, and imports very little, because each episode starts a sandbox.
Usage: `python3 -I -S -B toolbox.pyc HOST WORKDIR [PROCESSES [BYTES]]`; HOST is the descriptor of an inherited socket,
or the path of a unix socket where the host accepts one connection; the last two are limits.

Protocol on the socket, in both directions: two big-endian uint32 (length of the header, of the body), header, body. The
header consists of `key=value` fields joined by NUL, UTF-8 with surrogateescape; arguments and paths cannot contain NUL.
Each request carries `op` and `id`; its answer carries the same `id`, and `errno` and `message` if the operation failed.
A toolbox that crashes sends a frame with the id `broken`. When the host closes the socket, the toolbox exits, and with
it (it is PID 1) all processes inside.
"""

# C modules behind `os` and `signal`: importing those two would add 20 % to the start of each sandbox. contextlib and
# typing are avoided for the same reason, and whoever compiles this file leaves the next line out.
# ruff: noqa: SIM105, E402
from __future__ import annotations

import posix as os
import resource
import select
import sys
import time

HERE = sys.argv[0].rpartition("/")[0]
sys.path.append(HERE)

from jobs import NEVER, Exec, Process, Session, fault
from processes import CHUNK, Offers, mark_of, marks, processes, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from jobs import Fields, Job
    from processes import Living

    Handler = Callable[[], None]
    """Called when a descriptor is ready."""
else:
    import _signal as signal

EINPROGRESS = 115
PIECE = 1 << 20  # bytes per read of a file
LONGEST = 4095  # bytes of a path, the kernel's limit
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 22, 2


class Request(dict[str, str]):
    """Fields of a request of the host. Those that repeat are attributes: arguments and environment variables."""

    def __init__(self, header: bytes) -> None:
        self.arg: list[str] = []
        self.env: dict[str, str] = {}
        for field in header.decode("utf-8", "surrogateescape").split("\0"):
            key, _, value = field.partition("=")
            if key == "arg":
                self.arg.append(value)
            elif key == "env":
                name, _, setting = value.partition("=")
                self.env[name] = setting
            else:
                self[key] = value


class Tunnel(Process):
    """Connection to a port inside the sandbox, with the interface of a process."""

    def __init__(self, box: Toolbox, request: Request) -> None:
        from _socket import AF_INET, SOCK_STREAM, socket

        self.box, self.id = box, request["id"]
        self.link = socket(AF_INET, SOCK_STREAM)
        self.link.setblocking(False)  # a full backlog of a server must not block the toolbox
        error = self.link.connect_ex(("127.0.0.1", int(request["port"])))
        if error not in (0, EINPROGRESS):
            raise OSError(error, "nothing listens there")
        self.stdin, self.outputs = os.dup(self.link.fileno()), {"stdout": os.dup(self.link.fileno())}
        box.processes[self.id] = self
        box.answer({"id": self.id})

    def close_stdin(self) -> None:
        try:
            self.link.shutdown(1)
        except OSError:
            pass
        super().close_stdin()

    def drop(self) -> None:
        super().drop()
        self.link.close()


class OpenFile(Process):
    """File that the host reads in pieces, with the interface of a process."""

    def __init__(self, box: Toolbox, id: str, fd: int) -> None:
        self.box, self.id, self.stdin, self.outputs = box, id, -1, {"stdout": fd}
        box.processes[id] = self


class Toolbox:
    """Event loop: handles host requests, output, exits and deadlines."""

    def __init__(self, host: int, workdir: str, kernel: str) -> None:
        self.host, self.workdir, self.kernel = host, workdir, kernel
        self.env = {key.decode(): value.decode("utf-8", "surrogateescape") for key, value in os.environ.items()}
        self.inbox, self.outbox = bytearray(), bytearray()
        self.poll = select.poll()
        self.handlers: dict[int, Handler] = {}
        self.jobs: dict[str, Job] = {}
        self.leaders: dict[int, Job] = {}
        self.processes: dict[str, Process] = {}
        self.sessions: dict[str, Session] = {}
        self.marks = 0  # the mark of the last job
        self.offers = Offers()
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        os.set_inheritable(host, False)
        self.watch(wake_read, select.POLLIN, lambda: self.reap(wake_read))
        self.watch(host, select.POLLIN, self.on_requests)

    def run(self) -> None:
        self.answer({"id": "hello"})
        while True:
            deadline = min((job.deadline for job in self.jobs.values()), default=NEVER)
            wait = None if deadline == NEVER else max(0, int((deadline - time.monotonic()) * 1000) + 1)
            if self.offers.open and self.offers.settle():
                wait = 1
            for fd, _ in self.poll.poll(wait):
                handler = self.handlers.get(fd)
                if handler:
                    handler()
            if deadline != NEVER:
                now = time.monotonic()
                for job in [job for job in self.jobs.values() if job.deadline <= now]:
                    job.expire()

    def report_crash(self, error: BaseException) -> None:
        """Reports to the host that the toolbox crashes by its own error and was not killed."""
        self.answer({"id": "broken", "message": f"{type(error).__name__}: {error}"[:300]})

    # Descriptors

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        if fd not in self.handlers:
            os.set_blocking(fd, False)
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stops watching a descriptor; keeps it open."""
        if self.handlers.pop(fd, None):
            self.poll.unregister(fd)

    def close(self, fd: int) -> None:
        """Stops watching a descriptor and closes it."""
        self.unwatch(fd)
        try:
            os.close(fd)
        except OSError:
            pass

    def write_all(self, fd: int, data: bytes, done: Callable[[OSError | None], None]) -> None:
        """Writes `data` without blocking, then calls done(error or None)."""
        view, at = memoryview(data), 0

        def ready() -> None:
            nonlocal at
            try:
                while at < len(view):
                    at += os.write(fd, view[at : at + CHUNK])
            except BlockingIOError:
                self.watch(fd, select.POLLOUT, ready)
            except OSError as error:
                done(error)
            else:
                done(None)

        os.set_blocking(fd, False)
        ready()

    # The host

    def on_requests(self) -> None:
        try:
            data = os.read(self.host, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        self.inbox += data
        while len(self.inbox) >= 8:
            head = int.from_bytes(self.inbox[:4], "big") + 8
            end = head + int.from_bytes(self.inbox[4:8], "big")
            if len(self.inbox) < end:
                break
            request, body = Request(bytes(self.inbox[8:head])), bytes(self.inbox[head:end])
            del self.inbox[:end]
            try:
                self.OPERATIONS[request["op"]](self, request, body)
            except OSError as error:
                self.answer(fault(request["id"], error))
            except MemoryError:
                self.answer(fault(request["id"], OSError(12, "Cannot allocate memory")))

    def answer(self, fields: Fields, body: bytes = b"") -> None:
        header = "\0".join([f"{key}={value}" for key, value in fields.items()]).encode("utf-8", "surrogateescape")
        self.outbox += len(header).to_bytes(4, "big") + len(body).to_bytes(4, "big") + header
        self.outbox += body
        self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.host, bytes(self.outbox[: 1 << 18]))]
            self.poll.register(self.host, select.POLLIN)
        except BlockingIOError:
            self.handlers[self.host] = self.on_writable
            self.poll.register(self.host, select.POLLIN | select.POLLOUT)
        except OSError:
            os._exit(0)

    def on_writable(self) -> None:
        """Same as `on_requests`, while answers are pending."""
        self.handlers[self.host] = self.on_requests
        self.flush()
        self.on_requests()

    # Operations

    def op_exec(self, request: Request, body: bytes) -> None:
        Exec(self, request, body)

    def op_spawn(self, request: Request, _: bytes) -> None:
        Process(self, request)

    def op_carry(self, request: Request, _: bytes) -> None:
        """Spawns the program that packs and unpacks files."""
        request.arg[:0] = [sys.executable, "-I", "-S", "-B", "-X", "utf8", HERE + "/carry.pyc"]
        Process(self, request)

    def op_connect(self, request: Request, _: bytes) -> None:
        Tunnel(self, request)

    def op_process_read(self, request: Request, _: bytes) -> None:
        self.process(request).read(request)

    def op_process_write(self, request: Request, body: bytes) -> None:
        self.process(request).write(request, body)

    def op_process_close(self, request: Request, _: bytes) -> None:
        self.process(request).close_stdin()
        self.answer({"id": request["id"]})

    def op_process_drop(self, request: Request, _: bytes) -> None:
        self.process(request).drop()

    def process(self, request: Request) -> Process:
        try:
            return self.processes[request["job"]]
        except KeyError:
            raise ProcessLookupError(3, "no such process") from None

    def op_stop(self, request: Request, _: bytes) -> None:
        """Stops a job, or the running request of a session; the job sends the answer."""
        job = self.jobs.get(request["job"])
        if job:
            job.stop(request["reason"])

    def op_session_run(self, request: Request, body: bytes) -> None:
        name = request["session"]
        if name not in self.sessions:
            self.sessions[name] = Session(self, name, request["kind"])
        self.sessions[name].run(request, body)

    def op_session_reset(self, request: Request, _: bytes) -> None:
        session = self.sessions.get(request["session"])
        if session:
            session.reset(request["id"])
        else:
            self.answer({"id": request["id"]})

    def op_read(self, request: Request, _: bytes) -> None:
        fd = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = regular(fd)
            limit, data = int(request["limit"]), bytearray()
            while about.st_size <= limit and len(data) <= min(limit, PIECE):
                part = os.read(fd, PIECE)
                if not part:
                    break
                data += part
            if max(about.st_size, len(data)) > limit:
                raise OSError(27, f"File is larger than the limit of {limit} bytes")
        except OSError:
            os.close(fd)
            raise
        if len(data) <= PIECE:
            os.close(fd)
            self.answer({"id": request["id"]}, bytes(data))
        else:  # the host reads the rest like the output of a process
            OpenFile(self, request["id"], fd)
            self.answer({"id": request["id"], "more": 1}, bytes(data))

    def op_write(self, request: Request, body: bytes) -> None:
        path, mode = request["path"], int(request["mode"], 8)
        if len(path) > LONGEST:
            raise OSError(36, "File name too long")
        at = path.find("/", 1)
        while at > 0:
            try:
                os.mkdir(path[:at], 0o755)
            except OSError:
                pass  # exists, or `open` reports the better error
            at = path.find("/", at + 1)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, mode)
        try:
            regular(fd)
            os.ftruncate(fd, 0)
            os.fchmod(fd, mode)
            view = memoryview(body)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        self.answer({"id": request["id"]})

    def op_list(self, request: Request, _: bytes) -> None:
        limit = int(request["limit"])
        rows: list[tuple[str, str]] = []
        kinds = {0o100000: "file", 0o040000: "folder", 0o120000: "link"}
        with os.scandir(request["path"]) as entries:
            for entry in entries:
                if len(rows) == limit:
                    raise OSError(27, f"Folder has more than {limit} entries")
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed meanwhile
                kind = kinds.get(about.st_mode & 0o170000, "other")
                rows.append((entry.name, f"{kind} {about.st_size} {entry.name}"))
        rows.sort()
        self.answer({"id": request["id"]}, "\0".join([row for _, row in rows]).encode("utf-8", "surrogateescape"))

    def op_health(self, request: Request, _: bytes) -> None:
        self.answer({"id": request["id"], "processes": len(processes()) + 1})

    OPERATIONS = {
        "exec": op_exec,
        "spawn": op_spawn,
        "carry": op_carry,
        "connect": op_connect,
        "process_read": op_process_read,
        "process_write": op_process_write,
        "process_close": op_process_close,
        "process_drop": op_process_drop,
        "stop": op_stop,
        "session_run": op_session_run,
        "session_reset": op_session_reset,
        "read": op_read,
        "write": op_write,
        "list": op_list,
        "health": op_health,
    }

    # Processes

    def reap(self, wake: int) -> None:
        """Collects the exit codes of all children that ended, and tells the jobs whose leaders are among them."""
        os.read(wake, CHUNK)
        dead: list[tuple[Job, int, bool, int]] = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            self.offers.drop(pid)
            job = self.leaders.pop(pid, None)
            if job:
                signalled = os.WIFSIGNALED(status)
                code = 128 + os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status)
                dead.append((job, code, signalled, usage.ru_maxrss))
        living = None
        if len(dead) > 1:  # one scan for all
            try:
                living = self.living()
            except (OSError, MemoryError):
                pass
        for job, code, signalled, peak in dead:
            job.died(code, signalled, peak, living)

    def living(self) -> Living:
        """Returns all living processes, see `processes`."""
        if not self.leaders:
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return {}  # the usual case: no processes left
        return processes()

    def members(self, job: Job, since: int = 0, living: Living | None = None) -> list[int]:
        """Returns the pids of the job's tree started at `since` (ticks) or later, and always its leader."""
        if living is None:
            living = self.living()
        return [
            pid
            for pid, (_, start) in living.items()
            if (pid == job.pid and pid in self.leaders) or (start >= since and self.owner(pid, living) in (job, None))
        ]

    def members_or_none(self, job: Job, since: int = 0) -> list[int]:
        """Same as `members`, but empty if the kernel is out of memory; the processes are then killed without TERM."""
        try:
            return self.members(job, since)
        except (OSError, MemoryError):
            return []

    def owner(self, pid: int, living: Living) -> Job | None:
        """Returns the job of a process; None if unknown."""
        while pid not in self.leaders and living.get(pid, (1, 0))[0] in living:
            pid = living[pid][0]
        if pid in self.leaders:
            return self.leaders[pid]
        mark = mark_of(pid)
        return next((job for job in self.jobs.values() if job.mark == mark), None)

    def kill_members(self, job: Job, since: int = 0, leader: bool = True, living: Living | None = None) -> bool:
        """Kills the tree; returns True if any process was killed. `living`: processes known from an earlier scan.

        If the kernel is out of memory and cannot list processes, kills all, including the one that uses the memory.
        """
        found = []
        for _ in range(8):  # stop first, so that none can fork while others are killed
            try:
                fresh = [p for p in self.members(job, since, living) if p not in found and (leader or p != job.pid)]
            except (OSError, MemoryError):
                send_signal(-1, signal.SIGKILL)
                return True
            living = None
            if not fresh:
                break
            for pid in fresh:
                send_signal(pid, signal.SIGSTOP)
            found += fresh
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        return bool(found)


def regular(fd: int) -> os.stat_result:
    """Returns the stat of a regular file. Raises OSError for others: pipes would block, devices never end."""
    about = os.fstat(fd)
    kind = about.st_mode & 0o170000
    if kind == 0o040000:
        raise IsADirectoryError(21, "Is a directory")
    if kind != 0o100000:
        raise OSError(22, "Not a regular file")
    return about


def connected(host: str) -> int:
    """Returns the descriptor of the socket to the host."""
    if host.isdigit():
        return int(host)
    from _socket import AF_UNIX, SOCK_STREAM, socket

    link = socket(AF_UNIX, SOCK_STREAM)
    link.connect(host)
    return link.detach()


def limit(processes: int | None = None, memory: int | None = None) -> None:
    """Limits this process and its descendants, for hosts without control groups and as a second barrier."""
    if processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def prctl(option: int, *arguments: int | bytes) -> None:
    import _ctypes

    libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program and what it is linked to
    if _ctypes.call_function(_ctypes.dlsym(libc, "prctl"), (option, *arguments)) != 0:
        raise OSError(f"prctl {option} failed")


def guard() -> None:
    """Makes this process undumpable: programs of the same user cannot trace it or access its memory."""
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def filter_calls(path: str) -> None:
    """Installs a seccomp filter (`struct sock_filter[]` in a file) for this process and its descendants."""
    import _ctypes

    with open(path, "rb") as file:
        code = marks.fill(file.read())

    class Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "B"

    class Code(_ctypes.Array):  # type: ignore[type-arg]
        _type_, _length_ = Byte, len(code)

    held, width = Code.from_buffer_copy(code), 8 if sys.maxsize > 1 << 32 else 4
    length, address = (len(code) // 8).to_bytes(2, sys.byteorder), _ctypes.addressof(held)
    program = length + bytes(width - 2) + address.to_bytes(width, sys.byteorder)  # struct sock_fprog
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)


if __name__ == "__main__":
    bytes(2 * PIECE)  # makes glibc keep blocks of up to this size: mapping one per read takes 20 us
    guard()
    filter_calls(HERE + "/filter.bpf")
    limit(*map(int, sys.argv[3:]))
    box = Toolbox(connected(sys.argv[1]), sys.argv[2], HERE + "/kernel.pyc")
    try:
        box.run()
    except BaseException as error:
        box.report_crash(error)
        raise
