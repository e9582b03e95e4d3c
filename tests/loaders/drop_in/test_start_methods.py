"""How the drop-in DataLoader starts its workers, and what a script must look like for it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from drop_in_streams import census, run_script, values
from numbered_dataset import Numbered, Unpicklable, as_list

from penstock.loaders.drop_in import worker_start
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.drop_in.worker_start import choose_context, why_not_started_clean

# torch is loaded, and has threads, wherever these tests fork on purpose
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
LENGTH, BATCH = 11, 2


def test_what_a_clean_process_cannot_be_handed_is_forked_with_a_warning() -> None:
    with DataLoader(Unpicklable(4), 2, num_workers=1) as loader:
        with pytest.warns(RuntimeWarning, match=r"forks its workers, because .* does not pickle .*lock") as caught:
            assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert values(loader) == [[0, 1], [2, 3]]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert loader.multiprocessing_context.get_start_method() == "fork"


def test_reasons_against_a_clean_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = census()
    context = torch.multiprocessing.get_context("forkserver")
    assert why_not_started_clean(2, Numbered(4), context.Lock(), context.Queue(), torch.ones(100), as_list) is None
    assert "does not pickle" in str(why_not_started_clean(2, lambda: None))
    assert "300 tensors" in str(why_not_started_clean(2, [torch.ones(1) for _ in range(300)]))
    monkeypatch.setattr(worker_start, "memory_headroom", lambda: 1 << 20)
    assert why_not_started_clean(2, np.zeros(100_000, np.uint8)) is None
    assert "free memory" in str(why_not_started_clean(2, np.zeros(200_000, np.uint8)))
    assert why_not_started_clean(1, np.zeros(200_000, np.uint8)) is None
    del context
    assert census() == before
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", "<stdin>", raising=False)
    assert "no file that a worker could import" in str(why_not_started_clean(1, Numbered(4)))
    monkeypatch.delattr(main, "__file__")
    assert why_not_started_clean(1, Numbered(4)) is None
    monkeypatch.setattr(Numbered, "__module__", "__main__")
    monkeypatch.setattr(main, "Numbered", Numbered, raising=False)
    assert "no file that a worker could import" in str(why_not_started_clean(1, Numbered(4)))


def test_a_start_method_that_the_program_chose_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start.multiprocessing, "get_start_method", lambda allow_none: "spawn")
    assert choose_context(1, lambda: None).get_start_method() == "spawn"
    explicit = DataLoader(Numbered(4), num_workers=1, multiprocessing_context="fork")
    with explicit:
        assert values(explicit) == [[0], [1], [2], [3]]
        assert explicit.multiprocessing_context.get_start_method() == "fork"


SCRIPT = """
import os, sys
from penstock.loaders.drop_in.data_loader import DataLoader

class Squares:
    def __len__(self): return 4
    def __getitem__(self, index): return index * index

{guard}
    loader = DataLoader(Squares(), 2, num_workers=1)
    print([batch.tolist() for batch in loader])
"""
GUARD = 'if __name__ == "__main__":'


def test_a_script_without_a_main_guard_is_told_what_to_write(tmp_path: Path) -> None:
    done = run_script(SCRIPT.format(guard="if True:"), tmp_path)
    assert done.returncode == 1
    assert "LoaderError[E-MISUSE]" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "LoaderError[E-WORKER]" in last
    assert "exited with 1 while it was being started" in last
    assert done.stderr.count(f"under `{GUARD}`") >= 2
    mended = run_script(SCRIPT.format(guard=GUARD), tmp_path)
    assert (mended.returncode, mended.stdout) == (0, "[[0, 1], [4, 9]]\n")
    assert "Warning" not in mended.stderr


def test_a_script_that_no_worker_can_import_is_forked() -> None:
    done = run_script(SCRIPT.format(guard="if True:"), None)
    assert (done.returncode, done.stdout) == (0, "[[0, 1], [4, 9]]\n")
    assert "the main script has no file that a worker could import" in done.stderr


def test_workers_die_with_a_parent_that_a_signal_to_all_of_them_ends(tmp_path: Path) -> None:
    loop = "for _ in loader: print(loader._iterator._workers[0].pid, flush=True); os.killpg(0, 15)"
    done = run_script(SCRIPT.format(guard=GUARD).replace("print([batch.tolist() for batch in loader])", loop), tmp_path)
    assert done.returncode == -signal.SIGTERM
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.05)
