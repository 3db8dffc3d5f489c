"""Processes: how the toolbox starts them, finds them, and knows whose they are.

Who belongs to whom: whatever a job starts descends from its leader, or, once orphaned, is a child of PID 1 and
carries the job's mark. An orphan without one is nobody's, and dies with the next job.

The mark is a limit that bounds nothing here: on locks on files, which Linux does not count. The toolbox has it at the
number of the job while it starts the leader, and programs inherit it. The filter of system calls keeps them from
changing it: it asks for a secret, in registers that the call does not use. (A mark that needs none would have to be
put on between fork and exec, which Python can only do in a copy of the toolbox: that doubles the time of a command.)
"""

# ruff: noqa: SIM105 - contextlib would cost an import at the start of every sandbox
import _signal as signal
import posix as os
import sys
import time

LOCKS, NAME = 10, b"Max file locks"  # the limit that is a mark, and what /proc calls it
PRLIMIT = 302 if os.uname().machine == "x86_64" else 261
BLANK = b"a secret"  # what the filter has in the place of one
CHUNK = 1 << 16
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)  # in here

VICTIM, EARLY_VICTIM = b"1000", b"500"  # oom_score_adj of programs, and of what they fork before they have theirs


def launch(argv, cwd, env, fds, mark):
    """Starts a program; `fds` maps its descriptors to ours. Returns its pid, raises OSError."""
    os.chdir(cwd)
    marks.put(mark)
    try:
        for folder in [""] if "/" in argv[0] else env.get("PATH", "/usr/bin:/bin").split(":"):
            program = folder + "/" + argv[0] if folder else argv[0]
            if not os.access(program, os.F_OK):  # cheaper than a child that finds that out
                continue
            try:
                return start(program, argv, env, fds)
            except (FileNotFoundError, NotADirectoryError):
                pass
        raise FileNotFoundError(2, "command not found", argv[0])
    finally:
        os.chdir("/")


def start(program, argv, env, fds):
    """In a session of its own: nothing that counts for a whole group or session reaches the toolbox."""
    actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in fds.items()]
    own_score.lower()
    try:
        return os.posix_spawn(program, argv, env, file_actions=actions, setsid=True, setsigdef=IGNORED)
    finally:
        own_score.restore()


class Marks:
    """The mark of the toolbox itself, which programs are born with."""

    def __init__(self):
        import _ctypes

        class Word(_ctypes._SimpleCData):
            _type_ = "Q"

        self.secret = os.urandom(len(BLANK) - 1) + b"\1"  # the upper half is not 0, which 32-bit programs give
        self.call, self.syscall = _ctypes.call_function, _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")
        number, own, which = (Word(value) for value in (PRLIMIT, 0, LOCKS))
        self.head, self.tail = (number, own, which), (None, 0, Word(int.from_bytes(self.secret, sys.byteorder)))

    def fill(self, code):
        """A filter with the secret where it has a blank; it compares words of four bytes."""
        return code.replace(BLANK[:4], self.secret[:4]).replace(BLANK[4:], self.secret[4:])

    def put(self, number):
        """What is started from now on has this mark. Where limits are lower, nobody gets one."""
        limits = number.to_bytes(8, sys.byteorder) + b"\xff" * 8  # struct rlimit64: it may go as high as before
        self.call(self.syscall, (*self.head, limits, *self.tail))


marks = Marks()


def mark_of(pid):
    """The mark of a process; None if it has none."""
    for line in read_proc(pid, "limits").splitlines():
        if line.startswith(NAME):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    return None


def processes():
    """pid -> (parent's pid, start in ticks since boot) of all that live, the toolbox excepted.

    A zombie with other threads lives: only its main thread has ended.
    """
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            stat = read_proc(name, "stat")
            fields = stat[stat.rfind(b")") + 2 :].split()
            if len(fields) > 19 and (fields[0] not in (b"Z", b"X") or int(fields[17]) > 1):
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


class OwnScore:
    """The toolbox's place among those that the kernel kills for memory, as programs are born with it."""

    def __init__(self):
        # The file stays open: once the toolbox is undumpable, it may not open it any more.
        self.fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self.own = os.pread(self.fd, 16, 0)

    def lower(self):
        """What is started now goes before the toolbox, and after all programs that run already.

        The kernel passes over a program that has no memory of its own yet, so that the toolbox does not go with it.
        """
        os.pwrite(self.fd, EARLY_VICTIM, 0)

    def restore(self):
        os.pwrite(self.fd, self.own, 0)


own_score = OwnScore()


class Offers:
    """Programs that the kernel is to kill (with their children to come) for memory before all others.

    In the last moment of its exec a program still is as undumpable as the toolbox, which may not write there then. So
    each has a moment to get that far, which many do not outlive. One that cannot be read stays undumpable, and keeps
    the place that it was born to.
    """

    EARLY_S, LATE_S = 0.001, 0.2

    def __init__(self):
        self.open = {}  # pid: since when

    def add(self, pid):
        self.open[pid] = time.monotonic()

    def drop(self, pid):
        self.open.pop(pid, None)

    def settle(self):
        """Makes what offers are due; true if some remain."""
        now = time.monotonic()
        for pid, since in list(self.open.items()):
            if now - since < self.EARLY_S:
                break
            if offer(pid) or now - since > self.LATE_S:
                self.drop(pid)
        return bool(self.open)


def offer(pid):
    """False if it is to be tried again."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, VICTIM)
        finally:
            os.close(fd)
    except PermissionError:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None  # it has ended already
    except OSError:
        pass  # so it has
    return True


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
