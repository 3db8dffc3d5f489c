"""Filter of system calls, made with libseccomp if that is installed. The toolbox installs it in every sandbox.

It refuses (EPERM) calls that programs of an agent do not need and that gave access to holes in kernels: a second wall.
The list follows the default profile of Docker. It also refuses calls that would affect the toolbox, which runs as the
same user: limits, priorities and processors of any process but the caller.

Our own, not pyseccomp: that has had no release since 2021, wraps the same library, and would be a dependency of every
install, whose absence disables the filter.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform

from agentrl.sandbox.linux.process_mark import ALLOW, REFUSE, mark_filter, returns

_ABSENT = 0x00050000 | errno.ENOSYS  # programs then fall back, as on an older kernel
_NE, _MASKED_EQ = 1, 7
_ARM, _X86 = 0x40000028, 0x40000003
_NARROW = {"x86_64": _X86, "aarch64": _ARM}
"""32-bit architecture whose programs this machine also runs."""

_REFUSED = """
    acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount
    fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load
    kexec_load keyctl lookup_dcookie migrate_pages mount mount_setattr move_mount move_pages name_to_handle_at
    nfsservctl open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root process_vm_readv
    process_vm_writev ptrace quotactl quotactl_fd reboot request_key setdomainname sethostname setns settimeofday
    stime swapoff swapon syslog umount umount2 unshare uselib userfaultfd vhangup vm86 vm86old
"""
_MISSING = "clone3 io_setup"
"""clone3: glibc falls back to clone, whose flags can be filtered. io_setup: all users share one table of contexts."""

_NEW_NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
"""Flags of clone: time, mount, cgroup, UTS, IPC, user, PID, network."""

_LOW = 0xFFFFFFFF  # of an argument that the kernel takes as an int: it ignores the upper half
_AF_VSOCK = 40
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_REFUSED_IF: tuple[tuple[str, tuple[tuple[int, int, int, int], ...]], ...] = (
    ("prlimit64", ((0, _NE, 0, 0), (2, _NE, 0, 0))),  # reading limits of others is harmless
    ("sched_setaffinity", ((0, _NE, 0, 0),)),
    ("sched_setattr", ((0, _NE, 0, 0),)),
    ("sched_setparam", ((0, _NE, 0, 0),)),
    ("sched_setscheduler", ((0, _NE, 0, 0),)),
    ("setpriority", ((0, _NE, _PRIO_PROCESS, 0),)),
    ("setpriority", ((1, _NE, 0, 0),)),
    ("ioprio_set", ((0, _NE, _IOPRIO_WHO_PROCESS, 0),)),
    ("ioprio_set", ((1, _NE, 0, 0),)),
    ("socket", ((0, _MASKED_EQ, _LOW, _AF_VSOCK),)),  # reaches the hypervisor: no namespace covers it
    *(("clone", ((0, _MASKED_EQ, flag, flag),)) for flag in _NEW_NAMESPACES),
)
"""Call and conditions on its arguments that refuse it: argument number, comparison, and operands."""


class _Compare(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def toolbox_filter() -> bytes:
    """Returns the filter that the toolbox installs: that of marks, and that of calls if libseccomp is installed."""
    return mark_filter() + (filter_program() or returns(ALLOW))


@functools.cache
def filter_program() -> bytes | None:
    """Returns the filter as instructions (`struct sock_filter`) for the kernel; None without libseccomp."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ALLOW))
    try:
        if (narrow := _NARROW.get(platform.machine())) is not None:
            library.seccomp_arch_add(context, narrow)
        rules = [(REFUSE, name, ()) for name in _REFUSED.split()]
        rules += [(_ABSENT, name, ()) for name in _MISSING.split()]
        for action, name, conditions in (*rules, *((REFUSE, *row) for row in _REFUSED_IF)):
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != -1:  # else it is unknown to this libseccomp
                compares = (_Compare * len(conditions))(*(_Compare(*condition) for condition in conditions))
                library.seccomp_rule_add_array(context, action, number, len(conditions), compares)
        fd = os.memfd_create("filter")
        try:
            if library.seccomp_export_bpf(context, fd) != 0:
                return None
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)
    finally:
        library.seccomp_release(context)
