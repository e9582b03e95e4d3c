"""The self-test: it works in a bare container, and a wrong engine, package or loader makes it fail with one line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from constrained import Limit, few_files, no_home, one_cpu, read_only_root, run
from mounts import needs_mounts

from penstock.bench.checks import selftest
from penstock.bench.checks.finding import Finding
from penstock.bench.checks.parity import Candidate
from penstock.bench.checks.parity_pair import Served
from penstock.loaders.open_source import open_source
from penstock.loaders.sources.contract import Source
from penstock.pipelines.errors import LoaderError

# An arbitrary user, who may read what root may, since the interpreter may lie in a folder of root's.
ANY_USER = (
    *("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return selftest._photos(tmp_path_factory.mktemp("selftest"))


@needs_mounts
def test_it_works_with_a_read_only_root_an_arbitrary_user_and_no_home(tmp_path: Path) -> None:
    """As under `docker run --read-only --tmpfs /tmp --user 12345:12345`, with 128 files and one processor."""
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    prefix = (*read_only_root(tmp_path).prefix, *few_files().prefix, *one_cpu().prefix, *ANY_USER)
    command = (sys.executable, "-m", "penstock.bench.cli", "selftest")
    done = run(Limit(prefix, no_home().without), command, env={"TMPDIR": str(tmp_path)})
    assert done.code == 0, done.output + done.errors
    assert "selftest: this installation works" in done.output
    for name in ("torch/simplejpeg, 2 workers", "DataLoader", "training step"):
        assert f"ok    {name}" in done.output
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")] == []  # torch's own


def streams(monkeypatch: pytest.MonkeyPatch, spoiled: Any) -> None:
    """Every candidate serves the same small batch; that of Pillow goes through `spoiled`."""
    rows = Served(
        (0, 0),
        np.arange(4),
        np.zeros(4, np.int64),
        np.ones((4, 4), np.int32),
        np.zeros(4, bool),
        np.full((4, 8, 8, 3), 7, np.uint8),
        {},
    )

    def stream(candidate: Candidate) -> list[Served]:
        return [spoiled(rows)] if candidate.name == "torch/pillow" else [rows]

    monkeypatch.setattr(selftest, "_stream", stream)


@pytest.mark.parametrize(
    ("spoiled", "told"),
    [
        (lambda rows: replace(rows, labels=rows.labels + 1), "labels differ in 4 rows"),
        (lambda rows: replace(rows, windows=rows.windows + 1), "crops differ"),
        (lambda rows: replace(rows, pixels=rows.pixels + 1), "mean distance 1 is above 0"),
    ],
    ids=["labels", "crops", "pixels"],
)
def test_an_engine_that_serves_something_else_is_named(
    source: Source, monkeypatch: pytest.MonkeyPatch, spoiled: Any, told: str
) -> None:
    streams(monkeypatch, spoiled)
    with pytest.raises(selftest.SelftestFailure, match="torch/pillow and torch/simplejpeg") as caught:
        list(selftest._engines(source, None))
    assert told in str(caught.value)


def test_a_missing_package_is_a_warning_and_a_broken_one_an_error(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(rows: Served) -> Served:
        raise LoaderError("E-DEPENDENCY", "Pillow cannot be imported", fix="pip install pillow")

    streams(monkeypatch, missing)
    found = {finding.name: finding for finding in selftest._engines(source, None)}
    assert found["torch/pillow"] == Finding(
        "torch/pillow", "warn", "not usable: Pillow cannot be imported", "pip install pillow"
    )
    assert found["torch/simplejpeg, 2 workers"].state == "ok"
    assert "hdf5/simplejpeg" not in found

    def broken() -> None:
        raise AttributeError("no such function")

    with pytest.raises(LoaderError, match="training step: AttributeError: no such function") as caught:
        selftest._tried("training step", broken)
    assert caught.value.exit_code == 7


def test_a_lack_of_memory_is_told_as_such() -> None:
    with pytest.raises(LoaderError, match="can't allocate memory") as caught:
        selftest._tried("training step", lambda: torch.empty(1 << 60, dtype=torch.uint8))
    assert caught.value.code == "E-MEM"


def test_without_any_decoder_nothing_works(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(candidate: Candidate) -> list[Served]:
        raise LoaderError("E-DEPENDENCY", "not there", fix="pip install it")

    monkeypatch.setattr(selftest, "_stream", missing)
    with pytest.raises(LoaderError, match="no decoder works"):
        list(selftest._engines(source, None))


def test_a_training_step_that_changes_nothing_fails(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SIZE", 32)
    monkeypatch.setattr(selftest, "make_step", lambda model, settings: lambda images, labels: torch.tensor(0.5))
    with pytest.raises(selftest.SelftestFailure, match="changed 0 weights"):
        selftest._training_step(source)


def test_the_images_are_what_was_written(source: Source) -> None:
    assert (len(source), source.classes) == (selftest.IMAGES, (b"class0", b"class1"))
    again = open_source(Path(source.path(0).decode()).parents[1])
    assert again.fingerprint == source.fingerprint
