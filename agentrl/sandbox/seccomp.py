"""A filter of system calls, made with libseccomp where that is installed.

It refuses (EPERM) what no program of an agent needs and what holes in kernels were found behind: a wall behind the
walls. The list follows the default profile of Docker.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS  # makes glibc use clone, whose flags can be seen, instead of clone3
_MASKED_EQ = 7
_ARM, _X86 = 0x40000028, 0x40000003
_NARROW = {"x86_64": _X86, "aarch64": _ARM}
"""The 32-bit relative whose programs this machine runs, too."""

_REFUSED = """
    acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount
    fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load
    kexec_load keyctl lookup_dcookie mount mount_setattr move_mount move_pages name_to_handle_at nfsservctl
    open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root process_vm_readv
    process_vm_writev ptrace quotactl quotactl_fd reboot request_key setdomainname sethostname setns settimeofday
    stime swapoff swapon syslog umount umount2 unshare uselib userfaultfd vhangup vm86 vm86old
"""
_NEW_NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
"""Flags of clone: time, mount, cgroup, UTS, IPC, user, PID, network."""


class _Compare(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def filter_program() -> bytes | None:
    """The filter as `bwrap --seccomp` takes it; None without libseccomp."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    try:
        if (narrow := _NARROW.get(platform.machine())) is not None:
            library.seccomp_arch_add(context, narrow)
        for name in _REFUSED.split():
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != -1:  # unknown to this libseccomp
                library.seccomp_rule_add_array(context, _REFUSE, number, 0, None)
        clone, clone3 = (library.seccomp_syscall_resolve_name(name) for name in (b"clone", b"clone3"))
        for flag in _NEW_NAMESPACES:
            compare = _Compare(0, _MASKED_EQ, flag, flag)
            library.seccomp_rule_add_array(context, _REFUSE, clone, 1, ctypes.byref(compare))
        library.seccomp_rule_add_array(context, _ABSENT, clone3, 0, None)
        fd = os.memfd_create("filter")
        try:
            if library.seccomp_export_bpf(context, fd) != 0:
                return None
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)
    finally:
        library.seccomp_release(context)
