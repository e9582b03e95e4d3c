"""The sample stage: from encoded bytes to a decoded, cropped and resized uint8 image."""
