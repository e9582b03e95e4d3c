"""What the machine gives: CPUs, memory, file descriptors, and files that survive a crash."""
