"""Jobs: programs, shells and kernels run by the toolbox, each with its process tree."""

# ruff: noqa: SIM105 - contextlib would cost an import at the start of every sandbox
from __future__ import annotations

import posix as os
import resource
import select
import sys
import time

from processes import CHUNK, launch, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping

    from processes import Living
    from toolbox import Handler, Request, Toolbox

    Fields = Mapping[str, str | int]
    """Header of an answer."""
else:
    import _signal as signal

GRACE_S = 0.5  # between TERM and KILL
FLOOD = 64 << 20  # maximum bytes of output; then the program is stopped
NEVER = float("inf")
REQUEST_FD, REPLY_FD = 500, 501  # in shells and kernels; high to avoid collisions with programs
TICKS = os.sysconf("SC_CLK_TCK")

PROBE_S = 0.05  # timeout for an interrupted session to answer a probe
LONGEST_REPLY = 1 << 20  # of a session; programs can write to the pipe too

# The answer is the exit code of a command, which is also `$?` of the next. The signal makes bash abandon the current
# command.
BASH = r"""
trap 'continue 9999' USR1
__last() { return "$__code"; }
__code=0
while :; do
  printf '%s %d\0' "$__request" "$__code" >&501
  IFS= read -r -d '' -u 500 __text || exit 0
  __request=${__text%% *}
  eval "__last
${__text#* }" 500<&- 501>&-
  __code=$?
done
"""


class Capture:
    """Captures the first and the last half of `limit` bytes of a stream, and counts all."""

    def __init__(self, limit: int) -> None:
        self.half = max(limit // 2, 1)
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.half + CHUNK:
            del self.tail[: -self.half]

    def result(self) -> tuple[bytes, int]:
        """Returns the captured bytes, with a notice of the gap, and the number of dropped bytes."""
        if len(self.tail) > self.half:
            del self.tail[: -self.half]
        dropped = self.total - len(self.head) - len(self.tail)
        notice = b"\n[... %d bytes dropped ...]\n" % dropped if dropped else b""
        return bytes(self.head) + notice + bytes(self.tail), dropped


def drain(fd: int, capture: Capture, rounds: int = 64) -> bool:
    """Reads the available data of a pipe; returns False at the end of the stream."""
    for _ in range(rounds):
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        capture.add(data)
    return True


def fault(id: str, error: OSError) -> Fields:
    return {"id": id, "errno": error.errno or 5, "message": error.strerror or str(error)}


class Job:
    """Process started by the toolbox (the leader) and its process tree."""

    def __init__(self, box: Toolbox, id: str, env: dict[str, str]) -> None:
        self.box, self.id, self.env, self.mark = box, id, env, 0
        self.pid, self.reason, self.signalled = 0, "", False
        self.code: int | None = None  # exit code of the leader
        self.peak: int | str = ""  # memory of the leader, KiB; empty if unknown
        self.started, self.deadline, self.pause = time.monotonic(), NEVER, 0.002

    def start(self, argv: list[str], cwd: str, fds: dict[int, int]) -> None:
        self.box.marks += 1
        self.mark = self.box.marks
        self.box.offers.settle()  # earlier ones: many may be started at once
        self.pid = launch(argv, cwd, self.env, fds, self.mark)
        self.box.offers.add(self.pid)
        self.own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.code = None
        self.box.leaders[self.pid] = self.box.jobs[self.id] = self

    def stop(self, reason: str) -> None:
        """Sends TERM now, KILL after the grace period."""
        if not self.reason:
            self.reason = reason
            for pid in self.box.members_or_none(self):
                send_signal(pid, signal.SIGTERM)
            self.deadline = time.monotonic() + GRACE_S

    def expire(self) -> None:
        """Handles the deadline."""
        if self.reason or self.code is not None:
            self.clear()
        else:
            self.stop("timeout")

    def died(self, code: int, signalled: bool, peak: int, living: Living | None) -> None:
        """Handles the leader's exit. `peak`: its memory peak (KiB), ignored below the toolbox's at the fork."""
        self.code, self.signalled = code, signalled
        self.peak = peak if peak > self.own else ""
        self.clear(living)

    def clear(self, living: Living | None = None) -> None:
        """Kills the rest of the tree and repeats until none is left; then the job is over.

        `living`: processes after the leader's exit, if already scanned.
        """
        if self.box.kill_members(self, living=living):
            self.deadline = time.monotonic() + self.pause
            self.pause = min(2 * self.pause, 0.2)
        elif self.code is not None:
            self.deadline = NEVER
            self.box.jobs.pop(self.id, None)
            self.over()

    def over(self) -> None:
        """Hook: sends the answer once no process is left."""

    def answer(self, id: str, body: bytes = b"", **fields: str | int) -> None:
        """Sends exit code, reason and duration, with `fields`."""
        code = "" if self.code is None else self.code
        took = f"{time.monotonic() - self.started:.6f}"
        fields.update(id=id, code=code, signalled=int(self.signalled), reason=self.reason, took=took)
        self.box.answer(fields, body)


class Exec(Job):
    """Program run to completion."""

    def __init__(self, box: Toolbox, request: Request, stdin: bytes) -> None:
        super().__init__(box, request["id"], dict(box.env, **request.env))
        limit = int(request["limit"])
        self.captures, self.flood = (Capture(limit), Capture(limit)), max(FLOOD, limit)
        self.outputs = {}  # open ones only: descriptor numbers are reused
        theirs, ours = {0: box.null}, []
        for number in (1, 2):
            fd, theirs[number] = os.pipe()
            self.outputs[fd] = self.captures[number - 1]
            ours.append(fd)
        if stdin:
            theirs[0], source = os.pipe()
            ours.append(source)
        try:
            self.start(request.arg, request["cwd"], theirs)
        except OSError as error:
            for fd in ours:
                os.close(fd)
            # As in shells: 127 for a missing program, 126 for one that cannot be run.
            self.code = 127 if isinstance(error, FileNotFoundError) else 126
            text = f"{error.filename or request['arg'][0]}: {error.strerror}\n".encode("utf-8", "replace")
            self.answer(self.id, text, out=0)
            return
        finally:
            for fd in theirs.values():
                if fd != box.null:
                    os.close(fd)
        self.deadline = self.started + float(request["timeout"])
        for fd in self.outputs:
            box.watch(fd, select.POLLIN, self.reader(fd))
        if stdin:
            box.write_all(source, stdin, lambda error: box.close(source))

    def reader(self, fd: int) -> Handler:
        return lambda: self.output(fd)

    def output(self, fd: int) -> None:
        capture = self.outputs[fd]
        if not drain(fd, capture, 1):
            self.box.close(fd)
            del self.outputs[fd]
        if capture.total > self.flood:
            self.stop("output_limit")

    def over(self) -> None:
        for fd, capture in self.outputs.items():
            drain(fd, capture)
            self.box.close(fd)
        (out, out_dropped), (err, err_dropped) = (capture.result() for capture in self.captures)
        dropped = {"out_dropped": out_dropped, "err_dropped": err_dropped}
        self.answer(self.id, out + err, out=len(out), peak=self.peak, **dropped)


class Process(Job):
    """Interactive program. Its output is read only on request of the host."""

    def __init__(self, box: Toolbox, request: Request) -> None:
        super().__init__(box, request["id"], dict(box.env, **request.env))
        theirs_in, self.stdin = os.pipe()
        out, theirs_out = os.pipe()
        err, theirs_err = os.pipe()
        self.outputs = {"stdout": out, "stderr": err}
        try:
            self.start(request.arg, request["cwd"], {0: theirs_in, 1: theirs_out, 2: theirs_err})
        except OSError:
            for fd in (self.stdin, out, err):
                os.close(fd)
            raise
        finally:
            for fd in (theirs_in, theirs_out, theirs_err):
                os.close(fd)
        box.processes[self.id] = self
        box.answer({"id": self.id, "pid": self.pid})

    def read(self, request: Request) -> None:
        fd = self.outputs[request["stream"]]

        def ready() -> None:
            try:
                data = os.read(fd, min(int(request["size"]), 1 << 20))
            except BlockingIOError:
                return
            except OSError as error:
                self.box.unwatch(fd)
                self.box.answer(fault(request["id"], error))
                return
            self.box.unwatch(fd)
            self.box.answer({"id": request["id"]}, data)

        self.box.watch(fd, select.POLLIN, ready)

    def write(self, request: Request, data: bytes) -> None:
        if self.stdin < 0:
            raise BrokenPipeError(32, "stdin is closed")

        def written(error: OSError | None) -> None:
            self.box.unwatch(self.stdin)
            self.box.answer(fault(request["id"], error) if error else {"id": request["id"]})

        self.box.write_all(self.stdin, data, written)

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            self.box.close(self.stdin)
            self.stdin = -1

    def over(self) -> None:
        self.answer(self.id + ".end", peak=self.peak)

    def drop(self) -> None:
        """Releases the process: the host no longer needs it."""
        self.close_stdin()
        for fd in self.outputs.values():
            self.box.close(fd)
        del self.box.processes[self.id]


class Session(Job):
    """Bash or Python session for sequential requests.

    Input: number, space, text, NUL. Output: number, space, answer, NUL. After an interrupt the state of the session is
    unknown (the signal may even arrive after the request), so it gets empty requests until it answers one.
    """

    ARGV = {
        "shell": ["bash", "--norc", "--noprofile", "-c", BASH, "bash"],
        "python": [sys.executable, "-u", "-B", "KERNEL", str(REQUEST_FD), str(REPLY_FD)],
    }
    NUDGE = {"shell": signal.SIGUSR1, "python": signal.SIGINT}  # aborts the current request

    def __init__(self, box: Toolbox, name: str, kind: str) -> None:
        super().__init__(box, name, box.env)
        self.nudge = self.NUDGE[kind]
        self.argv = [box.kernel if arg == "KERNEL" else arg for arg in self.ARGV[kind]]
        self.cwd, self.run_id, self.reset_id, self.ended = box.workdir, "", "", ""
        self.since, self.nudged_twice, self.number = 0, False, 0
        self.fds: list[int] = []
        self.first_reply: str | None = None  # to the request; after a stop further ones show that the session works
        self.probes = 0

    def open(self) -> None:
        theirs_in, self.requests = os.pipe()
        self.replies, theirs_reply = os.pipe()
        self.output, theirs_out = os.pipe()
        self.fds = [self.requests, self.replies, self.output]
        wiring = {0: self.box.null, 1: theirs_out, 2: theirs_out, REQUEST_FD: theirs_in, REPLY_FD: theirs_reply}
        try:
            try:
                self.start(self.argv, self.cwd, wiring)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                self.start(self.argv, self.box.workdir, wiring)  # its folder was removed
        except OSError:
            self.hang_up()
            self.run_id = ""
            raise
        finally:
            for fd in (theirs_in, theirs_reply, theirs_out):
                os.close(fd)
        self.reply = bytearray()
        self.box.watch(self.replies, select.POLLIN, self.on_reply)
        self.box.watch(self.output, select.POLLIN, self.on_output)

    def run(self, request: Request, text: bytes) -> None:
        self.run_id, self.reason, self.ended, self.nudged_twice, self.pause = request["id"], "", "", False, 0.002
        self.first_reply, self.probes = None, 0
        self.capture = Capture(int(request["limit"]))
        self.since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
        if not self.pid:
            self.open()
        self.started = time.monotonic()
        self.deadline = self.started + float(request["timeout"])
        self.send(text)

    def send(self, text: bytes) -> None:
        self.number += 1
        self.box.write_all(
            self.requests, b"%d %s\0" % (self.number, text), lambda error: self.box.unwatch(self.requests)
        )

    def on_output(self) -> None:
        # Output of background jobs between commands is dropped.
        capture = self.capture if self.run_id else Capture(0)
        if not drain(self.output, capture, 1):
            self.box.unwatch(self.output)
        if capture.total > FLOOD:
            self.stop("output_limit")

    def on_reply(self) -> None:
        try:
            data = os.read(self.replies, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.box.unwatch(self.replies)
        self.reply += data
        if len(self.reply) > LONGEST_REPLY:
            self.reply.clear()
            self.ended = "killed"
            self.clear()
            return
        while b"\0" in self.reply:
            end = self.reply.index(b"\0")
            number, _, text = self.reply[:end].decode("utf-8", "replace").partition(" ")
            del self.reply[: end + 1]
            if self.run_id and number == str(self.number):
                if self.first_reply is None:
                    self.first_reply = text
                    self.settle()
                else:
                    self.finish(self.first_reply)

    def settle(self) -> None:
        """Answers; after a stop, only once the request's processes are gone and the session responds."""
        if not self.reason:
            self.finish(self.first_reply or "")
        elif self.box.kill_members(self, self.since, leader=False):
            self.deadline = time.monotonic() + self.pause
        elif self.probes < 20:
            self.probes += 1
            self.send(b"")
            self.deadline = time.monotonic() + PROBE_S
        else:
            self.ended = "killed"
            self.clear()

    def stop(self, reason: str) -> None:
        """Sends the nudge and TERM; later KILL to the request's processes; finally KILL to the session."""
        if self.run_id and not self.reason:
            self.reason = reason
            for pid in self.box.members_or_none(self, self.since):
                send_signal(pid, self.nudge if pid == self.pid else signal.SIGTERM)
            self.deadline = time.monotonic() + GRACE_S

    def expire(self) -> None:
        if self.ended or self.code is not None:
            self.clear()
        elif self.first_reply is not None:
            self.settle()
        elif not self.reason:
            self.stop("timeout")
        elif not self.nudged_twice:
            self.nudged_twice = True
            send_signal(self.pid, self.nudge)
            self.box.kill_members(self, self.since, leader=False)
            self.deadline = time.monotonic() + GRACE_S
        else:
            self.ended = "killed"
            self.clear()

    def died(self, code: int, signalled: bool, peak: int, living: Living | None) -> None:
        self.ended = self.ended or "died"
        super().died(code, signalled, peak, living)

    def over(self) -> None:
        if self.run_id:
            self.finish("")
        self.hang_up()
        self.pid, self.code, self.signalled = 0, None, False
        if self.reset_id:
            self.cwd, id, self.reset_id = self.box.workdir, self.reset_id, ""
            self.box.answer({"id": id})

    def finish(self, reply: str) -> None:
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

    def reset(self, id: str) -> None:
        if self.pid:
            self.reset_id, self.reason, self.ended = id, self.reason or "restart", "killed"
            self.clear()
        else:
            self.cwd = self.box.workdir
            self.box.answer({"id": id})

    def hang_up(self) -> None:
        for fd in self.fds:
            self.box.close(fd)
        self.fds = []
