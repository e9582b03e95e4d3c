"""Fields of samples next to image and label: masks, boxes, keypoints, text."""
