"""Processes: how the toolbox starts them, finds them, and knows whose they are.

Who belongs to whom: whatever a job starts descends from its leader, or, once orphaned, is a child of PID 1 and
carries the job's mark. An orphan that has spoilt its mark is nobody's, and dies with the next job.

A mark is a pair of limits that bound nothing here (locks on files, which Linux does not count; time of real-time
programs, which there are none of): the one lies as far below a middle as the other above. Programs inherit it, and may
lower both, but raise neither: so none can take the mark of another.
"""

# ruff: noqa: SIM105 - contextlib would cost an import at the start of every sandbox
import _signal as signal
import posix as os
import resource
import time

LOCKS, REAL_TIME = 10, resource.RLIMIT_RTTIME
MARKED = b"Max file locks", b"Max realtime timeout"  # as /proc calls them, in its order
MIDDLE = 1 << 40
CHUNK = 1 << 16

VICTIM, EARLY_VICTIM = b"1000", b"500"  # oom_score_adj of programs, and of what they fork before they have theirs


def launch(argv, cwd, env, fds, mark):
    """Starts a program; `fds` maps its descriptors to ours. Returns its pid, raises OSError."""
    os.chdir(cwd)
    try:
        for folder in [""] if "/" in argv[0] else env.get("PATH", "/usr/bin:/bin").split(":"):
            program = folder + "/" + argv[0] if folder else argv[0]
            if not os.access(program, os.F_OK):  # cheaper than a child that finds that out
                continue
            try:
                pid = start(program, argv, env, fds, mark)
                offer(pid)
                return pid
            except (FileNotFoundError, NotADirectoryError):
                pass
        raise FileNotFoundError(2, "command not found", argv[0])
    finally:
        os.chdir("/")


def start(program, argv, env, fds, mark):
    """As `posix_spawn`, which knows no limits."""
    told, tell = os.pipe()
    own_score.lower()
    try:
        pid = os.fork()
    except OSError:
        os.close(told)
        os.close(tell)
        raise
    finally:
        own_score.restore()
    if pid == 0:
        try:
            os.setsid()  # nothing that counts for a whole group or session reaches the toolbox
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # ignored in here
                signal.signal(number, signal.SIG_DFL)
            set_mark(mark)
            for theirs, ours in fds.items():
                os.dup2(ours, theirs)
            os.execve(program, argv, env)
        except BaseException as error:
            os.write(tell, b"%d" % (getattr(error, "errno", None) or 12))
        os._exit(127)
    os.close(tell)
    number = os.read(told, 16)  # ends with the exec, or when it has failed
    os.close(told)
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return pid


def set_mark(number):
    try:
        for which, bound in ((LOCKS, MIDDLE - number), (REAL_TIME, MIDDLE + number)):
            resource.setrlimit(which, (bound, bound))
    except (OSError, ValueError):
        pass  # the sandbox has lower limits: then nobody has a mark, and orphans die with the next job


def mark_of(pid):
    """The mark of a process; None if it has none, or has spoilt it."""
    bounds = [line.split()[4] for line in read_proc(pid, "limits").splitlines() if line.startswith(MARKED)]
    if len(bounds) == 2 and b"unlimited" not in bounds and sum(map(int, bounds)) == 2 * MIDDLE:
        return MIDDLE - int(bounds[0])
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
        """What is forked now goes before the toolbox, and after all programs that run already."""
        os.pwrite(self.fd, EARLY_VICTIM, 0)

    def restore(self):
        os.pwrite(self.fd, self.own, 0)


own_score = OwnScore()


def offer(pid):
    """Makes the kernel kill a process (and its children to come) for memory before all others."""
    for _ in range(20):
        try:
            fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        except PermissionError:  # in the last moment of its exec it still is as undumpable as the toolbox
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return  # it has ended already
            time.sleep(0.00002)
            continue
        except OSError:
            return  # it has ended already
        try:
            os.write(fd, VICTIM)
        except OSError:
            pass
        os.close(fd)
        return


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
