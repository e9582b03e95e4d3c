"""Starting, watching and ending worker processes."""
