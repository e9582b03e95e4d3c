"""Checks of machine, data and installation: doctor, parity and selftest."""
