"""How masks, boxes and keypoints follow the crop, turn and flip of their image."""
