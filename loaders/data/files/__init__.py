"""From an index to the encoded image and its label: folders and arrays."""
