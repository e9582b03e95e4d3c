"""The batch stage: from a uint8 batch to an augmented, normalised batch."""
