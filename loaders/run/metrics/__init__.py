"""What a loader does, for the tools that watch a training run."""
