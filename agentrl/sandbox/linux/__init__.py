"""What the kernel gives to both backends: cgroups and seccomp filters."""
