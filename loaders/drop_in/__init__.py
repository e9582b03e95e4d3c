"""PyTorch's DataLoader, watched and resumable."""
