"""A record for people: in the terminal and as a page."""
