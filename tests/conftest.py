"""Rules for every test: user folders are temporary, and a GPU test that cannot run fails instead of being skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from processes import note_leftovers

# Several processes run tests at a time: torch's threads, which wait for each other in a loop, would take the processors
# from those that have work. Torch reads it when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session", autouse=True)
def own_user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point the user's cache and configuration folders at a temporary folder, for subprocesses too.

    Otherwise a folder index or a profile that an earlier run saved could decide whether a test passes.
    """
    folder = tmp_path_factory.mktemp("user")
    ours = {
        name: str(folder / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    }
    theirs = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    yield
    for name, value in theirs.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what earlier tests left; fail a GPU test where there is no GPU: it runs only when asked for (`-m gpu`)."""
    note_leftovers()
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.fail("needs a CUDA device, and torch sees none", pytrace=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are processors, four at most: many tests wait, for processes or for a second."""
    return min(4, (os.cpu_count() or 1) + 1)
