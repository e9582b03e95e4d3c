"""Fields of samples besides image and label: masks, boxes, keypoints, text."""
