"""The toolbox: the init process of a sandbox. It runs programs, shells and Python kernels for the host.

It needs Linux and the standard library of any Python 3.9+, and imports next to nothing, because a sandbox is made for
every episode. Usage: `python3 -I -S -B toolbox.pyc FD WORKDIR [BYTES PROCESSES]`; the last two are limits.

Protocol, on the inherited socket FD, both ways: two big-endian uint32 (length of the header, of the body), header,
body. The header is `key=value` fields joined by NUL, UTF-8 with surrogateescape; neither arguments nor paths can
hold a NUL. Each request carries `op` and `id`; its answer carries the same `id`, and `errno` and `message` if the
operation failed. When the host closes the socket, the toolbox ends, and with it (it is PID 1) everything inside.

Who belongs to whom: whatever a job starts descends from its leader, or, once orphaned, is a child of PID 1 and
carries the job's id in its first environment. An orphan that hides that is nobody's, and dies with the next job.
"""

# The C modules behind `os` and `signal`: importing those two would add a fifth to the start of every sandbox.
# For the same reason contextlib is not used.
# ruff: noqa: SIM105
import _signal as signal
import posix as os
import select
import sys
import time

GRACE_S = 0.5  # between asking (TERM) and killing (KILL)
FLOOD = 64 << 20  # bytes of output after which a program is stopped
CHUNK = 1 << 16
NEVER = float("inf")
REQUEST_FD, REPLY_FD = 500, 501  # in shells and kernels; high, so that no program uses them by chance
TICKS = os.sysconf("SC_CLK_TCK")

# The exit code of a command goes out as the answer, and is `$?` for the next. The signal makes bash leave whatever it
# is in the middle of.
BASH = r"""
trap 'continue 9999' USR1
__last() { return "$__code"; }
__code=0
while :; do
  printf '%d\0' "$__code" >&501
  IFS= read -r -d '' -u 500 __command || exit 0
  eval "__last
$__command" 500<&- 501>&-
  __code=$?
done
"""


class Capture:
    """The first and the last half of `limit` bytes of a stream, and how many came in all."""

    def __init__(self, limit):
        self.half = max(limit // 2, 1)
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data):
        self.total += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.half + CHUNK:
            del self.tail[: -self.half]

    def result(self):
        """The bytes kept, with a notice where some are missing, and how many are missing."""
        if len(self.tail) > self.half:
            del self.tail[: -self.half]
        dropped = self.total - len(self.head) - len(self.tail)
        notice = b"\n[... %d bytes dropped ...]\n" % dropped if dropped else b""
        return bytes(self.head) + notice + bytes(self.tail), dropped


def launch(argv, cwd, env, fds):
    """Starts a program; `fds` maps its descriptors to ours. Returns its pid, raises OSError."""
    actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in fds.items()]
    defaults = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT]  # ignored in here
    os.chdir(cwd)
    try:
        for folder in [""] if "/" in argv[0] else env.get("PATH", "/usr/bin:/bin").split(":"):
            try:
                program = folder + "/" + argv[0] if folder else argv[0]
                return os.posix_spawn(program, argv, env, file_actions=actions, setpgroup=0, setsigdef=defaults)
            except (FileNotFoundError, NotADirectoryError):
                pass
        raise FileNotFoundError(2, "command not found", argv[0])
    finally:
        os.chdir("/")


def drain(fd, capture, rounds=64):
    """Takes what a pipe holds now; false when nobody can write to it any more."""
    for _ in range(rounds):
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        capture.add(data)
    return True


def processes():
    """pid -> (parent's pid, start in ticks since boot) of all that live, the toolbox excepted."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            stat = read_proc(name, "stat")
            fields = stat[stat.rfind(b")") + 2 :].split()
            if len(fields) > 19 and fields[0] not in (b"Z", b"X"):
                found[int(name)] = int(fields[1]), int(fields[19])
    return found


def read_proc(pid, name):
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
        try:
            return os.read(fd, CHUNK)
        finally:
            os.close(fd)
    except OSError:
        return b""


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def fault(id, error):
    return {"id": id, "errno": error.errno or 5, "message": error.strerror or str(error)}


class Job:
    """A process that the toolbox started (the leader) and all that it starts in turn."""

    def __init__(self, box, id, env):
        self.box, self.id, self.env = box, id, dict(env, AGENTRL_JOB=id)
        self.pid, self.code, self.reason, self.signalled = 0, None, "", False
        self.started, self.deadline, self.pause = time.monotonic(), NEVER, 0.002

    def start(self, argv, cwd, fds):
        self.pid = launch(argv, cwd, self.env, fds)
        self.code = None
        self.box.leaders[self.pid] = self.box.jobs[self.id] = self

    def stop(self, reason):
        """TERM now; KILL after the grace."""
        if not self.reason:
            self.reason = reason
            for pid in self.box.members(self):
                send_signal(pid, signal.SIGTERM)
            self.deadline = time.monotonic() + GRACE_S

    def expire(self):
        """The deadline has come."""
        if self.reason or self.code is not None:
            self.clear()
        else:
            self.stop("timeout")

    def died(self, code, signalled):
        self.code, self.signalled = code, signalled
        self.clear()

    def clear(self):
        """Kills what is left of the tree and looks again until nothing is; then the job is over."""
        if self.box.kill_members(self):
            self.deadline = time.monotonic() + self.pause
            self.pause = min(2 * self.pause, 0.2)
        elif self.code is not None:
            self.deadline = NEVER
            self.box.jobs.pop(self.id, None)
            self.over()

    def over(self):
        """Nothing is left: answer."""

    def answer(self, id, body=b"", **fields):
        """Sends how it ended, with `fields`."""
        code = "" if self.code is None else self.code
        took = f"{time.monotonic() - self.started:.6f}"
        fields.update(id=id, code=code, signalled=int(self.signalled), reason=self.reason, took=took)
        self.box.answer(fields, body)


class Exec(Job):
    """A program that runs to its end."""

    def __init__(self, box, request, stdin):
        super().__init__(box, request["id"], dict(box.env, **request["env"]))
        limit = int(request["limit"])
        self.captures, self.flood = {}, max(FLOOD, limit)
        theirs, ours = {0: box.null}, []
        for number in (1, 2):
            fd, theirs[number] = os.pipe()
            self.captures[fd] = Capture(limit)
            ours.append(fd)
        if stdin:
            theirs[0], source = os.pipe()
            ours.append(source)
        try:
            self.start(request["arg"], request["cwd"], theirs)
        except OSError as error:
            for fd in ours:
                os.close(fd)
            # As shells have it: 127 for what is not there, 126 for what cannot be run.
            self.code = 127 if isinstance(error, FileNotFoundError) else 126
            text = f"{error.filename or request['arg'][0]}: {error.strerror}\n".encode("utf-8", "replace")
            self.answer(self.id, text, out=0)
            return
        finally:
            for fd in theirs.values():
                if fd != box.null:
                    os.close(fd)
        self.deadline = self.started + float(request["timeout"])
        for fd in self.captures:
            box.watch(fd, select.POLLIN, lambda fd=fd: self.output(fd))
        if stdin:
            box.feed(source, stdin, lambda error: box.forget(source))

    def output(self, fd):
        if not drain(fd, self.captures[fd], 1):
            self.box.forget(fd)
        if self.captures[fd].total > self.flood:
            self.stop("output_limit")

    def over(self):
        for fd, capture in self.captures.items():
            if fd in self.box.handlers:
                drain(fd, capture)
                self.box.forget(fd)
        (out, out_dropped), (err, err_dropped) = (capture.result() for capture in self.captures.values())
        self.answer(self.id, out + err, out=len(out), out_dropped=out_dropped, err_dropped=err_dropped)


class Process(Job):
    """A program that the host talks to. Nothing is read from it unless the host asks."""

    def __init__(self, box, request):
        super().__init__(box, request["id"], dict(box.env, **request["env"]))
        theirs_in, self.stdin = os.pipe()
        out, theirs_out = os.pipe()
        err, theirs_err = os.pipe()
        self.outputs = {"stdout": out, "stderr": err}
        try:
            self.start(request["arg"], request["cwd"], {0: theirs_in, 1: theirs_out, 2: theirs_err})
        except OSError:
            for fd in (self.stdin, out, err):
                os.close(fd)
            raise
        finally:
            for fd in (theirs_in, theirs_out, theirs_err):
                os.close(fd)
        box.processes[self.id] = self
        box.answer({"id": self.id, "pid": self.pid})

    def read(self, request):
        fd = self.outputs[request["stream"]]

        def ready():
            try:
                data = os.read(fd, min(int(request["size"]), 1 << 20))
            except BlockingIOError:
                return
            self.box.rest(fd)
            self.box.answer({"id": request["id"]}, data)

        self.box.watch(fd, select.POLLIN, ready)

    def write(self, request, data):
        if self.stdin < 0:
            raise BrokenPipeError(32, "stdin is closed")

        def written(error):
            self.box.rest(self.stdin)
            self.box.answer(fault(request["id"], error) if error else {"id": request["id"]})

        self.box.feed(self.stdin, data, written)

    def close_stdin(self):
        if self.stdin >= 0:
            self.box.forget(self.stdin)
            self.stdin = -1

    def over(self):
        self.answer(self.id + ".end")

    def drop(self):
        """The host wants nothing more of it."""
        self.close_stdin()
        for fd in self.outputs.values():
            self.box.forget(fd)
        del self.box.processes[self.id]


class Session(Job):
    """A bash or a Python that takes one request after the other: text and NUL in, answer and NUL out."""

    ARGV = {
        "shell": ["bash", "--norc", "--noprofile", "-c", BASH, "bash"],
        "python": [sys.executable, "-u", "-B", "KERNEL", str(REQUEST_FD), str(REPLY_FD)],
    }
    NUDGE = {"shell": signal.SIGUSR1, "python": signal.SIGINT}  # makes it give up the request it is at

    def __init__(self, box, name, kind):
        super().__init__(box, name, box.env)
        self.nudge = self.NUDGE[kind]
        self.argv = [box.kernel if arg == "KERNEL" else arg for arg in self.ARGV[kind]]
        self.cwd, self.run_id, self.reset_id, self.ended = box.workdir, "", "", ""
        self.since, self.struck, self.fds = 0, False, []

    def open(self):
        theirs_in, self.requests = os.pipe()
        self.replies, theirs_reply = os.pipe()
        self.output, theirs_out = os.pipe()
        self.fds = [self.requests, self.replies, self.output]
        wiring = {0: self.box.null, 1: theirs_out, 2: theirs_out, REQUEST_FD: theirs_in, REPLY_FD: theirs_reply}
        try:
            try:
                self.start(self.argv, self.cwd, wiring)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                self.start(self.argv, self.box.workdir, wiring)  # its folder is gone
        except OSError:
            self.hang_up()
            self.run_id = ""
            raise
        finally:
            for fd in (theirs_in, theirs_reply, theirs_out):
                os.close(fd)
        self.reply, self.greeted = bytearray(), False
        self.box.watch(self.replies, select.POLLIN, self.on_reply)
        self.box.watch(self.output, select.POLLIN, self.on_output)

    def run(self, request, text):
        self.run_id, self.reason, self.ended, self.struck, self.pause = request["id"], "", "", False, 0.002
        self.last_word = None
        self.capture = Capture(int(request["limit"]))
        self.since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
        if not self.pid:
            self.open()
        self.started = time.monotonic()
        self.deadline = self.started + float(request["timeout"])
        self.box.feed(self.requests, text + b"\0", lambda error: self.box.rest(self.requests))

    def on_output(self):
        # What a background job says while no command runs belongs to nobody.
        capture = self.capture if self.run_id else Capture(0)
        if not drain(self.output, capture, 1):
            self.box.rest(self.output)
        if capture.total > FLOOD:
            self.stop("output_limit")

    def on_reply(self):
        try:
            data = os.read(self.replies, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.box.rest(self.replies)
        self.reply += data
        while b"\0" in self.reply:
            end = self.reply.index(b"\0")
            text = self.reply[:end].decode("utf-8", "replace")
            del self.reply[: end + 1]
            if not self.greeted:
                self.greeted = True
            elif self.run_id:
                self.last_word = text
                self.settle()

    def settle(self):
        """Answers; if the request was stopped, not before all that it started is gone."""
        if self.reason and self.box.kill_members(self, self.since, leader=False):
            self.deadline = time.monotonic() + self.pause
        else:
            self.finish(self.last_word)

    def stop(self, reason):
        """First the nudge and TERM; then KILL for what the request started; then KILL for the session itself."""
        if self.run_id and not self.reason:
            self.reason = reason
            for pid in self.box.members(self, self.since):
                send_signal(pid, self.nudge if pid == self.pid else signal.SIGTERM)
            self.deadline = time.monotonic() + GRACE_S

    def expire(self):
        if self.ended or self.code is not None:
            self.clear()
        elif self.last_word is not None:
            self.settle()
        elif not self.reason:
            self.stop("timeout")
        elif not self.struck:
            self.struck = True
            self.box.kill_members(self, self.since, leader=False)
            send_signal(self.pid, self.nudge)
            self.deadline = time.monotonic() + GRACE_S
        else:
            self.ended = "killed"
            self.clear()

    def died(self, code, signalled):
        self.ended = self.ended or "died"
        super().died(code, signalled)

    def over(self):
        if self.run_id:
            self.finish("")
        self.hang_up()
        self.pid, self.code, self.signalled = 0, None, False
        if self.reset_id:
            self.cwd, id, self.reset_id = self.box.workdir, self.reset_id, ""
            self.box.answer({"id": id})

    def finish(self, reply):
        drain(self.output, self.capture)
        self.deadline = NEVER
        if not self.ended:
            try:
                self.cwd = os.readlink(f"/proc/{self.pid}/cwd")
            except OSError:
                pass
        out, dropped = self.capture.result()
        id, self.run_id = self.run_id, ""
        self.answer(id, out, reply=reply, ended=self.ended, cwd=self.cwd, out_dropped=dropped)

    def reset(self, id):
        if self.pid:
            self.reset_id, self.reason, self.ended = id, self.reason or "restart", "killed"
            self.clear()
        else:
            self.cwd = self.box.workdir
            self.box.answer({"id": id})

    def hang_up(self):
        for fd in self.fds:
            self.box.forget(fd)
        self.fds = []


class Toolbox:
    """The loop: waits for the host, for output, for deaths and deadlines."""

    def __init__(self, host, workdir, kernel):
        self.host, self.workdir, self.kernel = host, workdir, kernel
        self.env = {key.decode(): value.decode("utf-8", "surrogateescape") for key, value in os.environ.items()}
        self.inbox, self.outbox = bytearray(), bytearray()
        self.poll, self.handlers = select.poll(), {}
        self.jobs, self.leaders, self.processes, self.sessions = {}, {}, {}, {}
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        os.set_inheritable(host, False)
        self.watch(wake_read, select.POLLIN, lambda: self.reap(wake_read))
        self.watch(host, select.POLLIN, self.hear)

    def run(self):
        self.answer({"id": "hello"})
        while True:
            deadline = min((job.deadline for job in self.jobs.values()), default=NEVER)
            wait = None if deadline == NEVER else max(0, int((deadline - time.monotonic()) * 1000) + 1)
            for fd, _ in self.poll.poll(wait):
                handler = self.handlers.get(fd)
                if handler:
                    handler()
            if deadline != NEVER:
                now = time.monotonic()
                for job in [job for job in self.jobs.values() if job.deadline <= now]:
                    job.expire()

    # Descriptors

    def watch(self, fd, events, handler):
        if fd not in self.handlers:
            os.set_blocking(fd, False)
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def rest(self, fd):
        """Stops watching; the descriptor stays open."""
        if self.handlers.pop(fd, None):
            self.poll.unregister(fd)

    def forget(self, fd):
        """Stops watching and closes."""
        self.rest(fd)
        try:
            os.close(fd)
        except OSError:
            pass

    def feed(self, fd, data, done):
        """Writes `data` as the other side takes it, then calls done(error or None)."""
        view, at = memoryview(data), 0

        def ready():
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

    def hear(self):
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
            header, body = bytes(self.inbox[8:head]), bytes(self.inbox[head:end])
            del self.inbox[:end]
            request = {"arg": [], "env": {}}
            for field in header.decode("utf-8", "surrogateescape").split("\0"):
                key, _, value = field.partition("=")
                if key == "arg":
                    request["arg"].append(value)
                elif key == "env":
                    name, _, setting = value.partition("=")
                    request["env"][name] = setting
                else:
                    request[key] = value
            try:
                self.OPERATIONS[request["op"]](self, request, body)
            except OSError as error:
                self.answer(fault(request["id"], error))

    def answer(self, fields, body=b""):
        header = "\0".join([f"{key}={value}" for key, value in fields.items()]).encode("utf-8", "surrogateescape")
        self.outbox += len(header).to_bytes(4, "big") + len(body).to_bytes(4, "big") + header + body
        self.flush()

    def flush(self):
        try:
            while self.outbox:
                del self.outbox[: os.write(self.host, bytes(self.outbox[: 1 << 18]))]
            self.poll.register(self.host, select.POLLIN)
        except BlockingIOError:
            self.handlers[self.host] = self.talk
            self.poll.register(self.host, select.POLLIN | select.POLLOUT)
        except OSError:
            os._exit(0)

    def talk(self):
        """Like `hear`, while answers wait to be sent."""
        self.handlers[self.host] = self.hear
        self.flush()
        self.hear()

    # Operations

    def op_exec(self, request, body):
        Exec(self, request, body)

    def op_spawn(self, request, _):
        Process(self, request)

    def op_process_read(self, request, _):
        self.process(request).read(request)

    def op_process_write(self, request, body):
        self.process(request).write(request, body)

    def op_process_close(self, request, _):
        self.process(request).close_stdin()
        self.answer({"id": request["id"]})

    def op_process_drop(self, request, _):
        self.process(request).drop()

    def process(self, request):
        try:
            return self.processes[request["job"]]
        except KeyError:
            raise ProcessLookupError(3, "no such process") from None

    def op_stop(self, request, _):
        """Ends a job, or a session's running request; the answer is the job's own."""
        job = self.jobs.get(request["job"])
        if job:
            job.stop(request["reason"])

    def op_session_run(self, request, body):
        name = request["session"]
        if name not in self.sessions:
            self.sessions[name] = Session(self, name, request["kind"])
        self.sessions[name].run(request, body)

    def op_session_reset(self, request, _):
        session = self.sessions.get(request["session"])
        if session:
            session.reset(request["id"])
        else:
            self.answer({"id": request["id"]})

    def op_read(self, request, _):
        fd = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            kind = os.fstat(fd).st_mode & 0o170000
            if kind == 0o040000:
                raise IsADirectoryError(21, "Is a directory")
            if kind != 0o100000:
                raise OSError(22, "Not a regular file")
            limit, data = int(request["limit"]), bytearray()
            while len(data) <= limit:
                part = os.read(fd, 1 << 20)
                if not part:
                    break
                data += part
        finally:
            os.close(fd)
        if len(data) > limit:
            raise OSError(27, f"File is larger than the limit of {limit} bytes")
        self.answer({"id": request["id"]}, bytes(data))

    def op_write(self, request, body):
        path, mode, at = request["path"], int(request["mode"], 8), 0
        while True:
            at = path.find("/", at + 1)
            if at < 0:
                break
            try:
                os.mkdir(path[:at], 0o755)
            except OSError:
                pass  # it is there, or `open` says better what is wrong
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, mode)
        try:
            os.fchmod(fd, mode)
            view = memoryview(body)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        self.answer({"id": request["id"]})

    def op_list(self, request, _):
        rows = []
        kinds = {0o100000: "file", 0o040000: "folder", 0o120000: "link"}
        for name in sorted(os.listdir(request["path"])):
            about = os.lstat(request["path"] + "/" + name)
            rows.append(f"{kinds.get(about.st_mode & 0o170000, 'other')} {about.st_size} {name}")
        self.answer({"id": request["id"]}, "\0".join(rows).encode("utf-8", "surrogateescape"))

    def op_health(self, request, _):
        self.answer({"id": request["id"], "processes": len(processes()) + 1})

    OPERATIONS = {
        "exec": op_exec,
        "spawn": op_spawn,
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

    def reap(self, wake):
        os.read(wake, CHUNK)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            job = self.leaders.pop(pid, None)
            if job:
                signalled = os.WIFSIGNALED(status)
                job.died(128 + os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status), signalled)

    def members(self, job, since=0):
        """Pids of the job's tree that started at `since` (ticks) or later; its leader always counts."""
        if not self.leaders:
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return []  # the usual case: nothing lives any more
        living = processes()
        return [
            pid
            for pid, (_, start) in living.items()
            if (pid == job.pid and pid in self.leaders) or (start >= since and self.owner(pid, living) in (job, None))
        ]

    def owner(self, pid, living):
        """The job that a process belongs to; None if that cannot be told."""
        while pid not in self.leaders and living.get(pid, (1, 0))[0] in living:
            pid = living[pid][0]
        if pid in self.leaders:
            return self.leaders[pid]
        for setting in read_proc(pid, "environ").split(b"\0"):
            if setting.startswith(b"AGENTRL_JOB="):
                return self.jobs.get(setting[12:].decode("ascii", "replace"))
        return None

    def kill_members(self, job, since=0, leader=True):
        """Kills the tree; true if there was anything to kill."""
        found = []
        for _ in range(8):  # stop them first, so that none can fork while others are killed
            fresh = [p for p in self.members(job, since) if p not in found and (leader or p != job.pid)]
            if not fresh:
                break
            for pid in fresh:
                send_signal(pid, signal.SIGSTOP)
            found += fresh
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        return bool(found)


def limit(memory, pids):
    """Bounds this process and all that come after it, where the host has no control groups."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_NPROC, (pids, pids))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        limit(int(sys.argv[3]), int(sys.argv[4]))
    Toolbox(int(sys.argv[1]), sys.argv[2], sys.argv[0].rpartition("/")[0] + "/kernel.pyc").run()
