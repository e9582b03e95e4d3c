"""Checks of arguments, and the words for what is wrong with them."""
