"""Labels of every kind: the numbering of classes, and the storage of other labels."""
