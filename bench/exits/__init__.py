"""How a command ends: signals become exits."""
