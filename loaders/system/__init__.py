"""Resources of the machine: CPUs, memory, file descriptors; files that survive a crash."""
