"""Checks of arguments, and the messages of these checks."""
