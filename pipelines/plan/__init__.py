"""Every random draw as a pure function of seed, epoch and sample."""
