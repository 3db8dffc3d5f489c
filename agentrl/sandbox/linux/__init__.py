"""Kernel features of both backends: cgroups and seccomp filters."""
