"""The fixture of every test of the native library."""

from __future__ import annotations

import ctypes

import native_tests
import pytest


@pytest.fixture(scope="session")
def native() -> ctypes.CDLL:
    """Return the native library, built from the tree's C files; skips without a C compiler."""
    return native_tests.native()
