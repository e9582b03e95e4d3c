"""The self-test: it works in a bare container, and a wrong engine, package or loader makes it fail with one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from altered_engine import Change, serve_otherwise
from constrained import Limit, few_files, no_home, one_cpu, read_only_root, run
from mounts import needs_mounts

from penstock.bench.checks import parity, selftest
from penstock.bench.checks.finding import Finding
from penstock.bench.checks.selftest_device import SelftestFailure
from penstock.loaders import Loader, create_loader
from penstock.loaders.dali.dali_probe import Verdict
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.errors import LoaderError

# An arbitrary user with root's read access, because the interpreter may be in a folder of root.
ANY_USER = (
    *("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return selftest.write_images(tmp_path_factory.mktemp("selftest"))


@pytest.mark.slow
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


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes create_loader raise an error for each engine with one of these decoders or backends."""

    def spoil(error: Exception, *names: str) -> None:
        def create(source: Source, **settings: Any) -> Loader:
            if {settings["backend"], settings.get("decoder")} & set(names):
                raise error
            return create_loader(source, **settings)

        monkeypatch.setattr(parity, "create_loader", create)

    return spoil


MISSING = LoaderError("E-DEPENDENCY", "it cannot be imported", fix="pip install it")


@pytest.mark.parametrize(
    ("change", "words"),
    [(Change(labels=1), "labels differ in 1 row"), (Change(images=1), "mean distance .* is above 0")],
    ids=["labels", "pixels"],
)
def test_an_engine_that_serves_a_different_stream_is_named(
    source: Source, monkeypatch: pytest.MonkeyPatch, change: Change, words: str
) -> None:
    serve_otherwise(monkeypatch, change)
    with pytest.raises(SelftestFailure, match=f"torch/simplejpeg and torch/pillow: {words}"):
        list(selftest.check_engines(source, None))


def test_a_missing_package_is_a_warning(source: Source, without: Callable[..., None]) -> None:
    without(MISSING, "pillow", "dali")
    found = {finding.name: finding for finding in selftest.check_engines(source, None)}
    assert found["torch/pillow"] == Finding(
        "torch/pillow", "warn", "not usable: it cannot be imported", "pip install it"
    )
    assert found["torch/turbojpeg"].found == "the stream of torch/simplejpeg, bit for bit"
    assert found["torch/simplejpeg, 2 workers"].state == "ok"
    assert "hdf5/simplejpeg" not in found


def test_a_broken_package_is_an_error_that_names_its_engine(source: Source, without: Callable[..., None]) -> None:
    without(AttributeError("no such function"), "turbojpeg")
    with pytest.raises(LoaderError, match="torch/turbojpeg: AttributeError: no such function") as caught:
        list(selftest.check_engines(source, None))
    assert (caught.value.code, caught.value.exit_code) == ("E-DEPENDENCY", 7)


def test_a_lack_of_memory_is_reported_as_such(source: Source, without: Callable[..., None]) -> None:
    without(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "simplejpeg")
    with pytest.raises(LoaderError, match="can't allocate memory") as caught:
        list(selftest.check_engines(source, None))
    assert caught.value.code == "E-MEM"


def test_without_any_decoder_nothing_works(source: Source, without: Callable[..., None]) -> None:
    without(MISSING, "torch", "dali")
    with pytest.raises(LoaderError, match="no decoder works"):
        list(selftest.check_engines(source, None))


def test_a_training_step_that_changes_nothing_fails(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SIZE", 32)
    monkeypatch.setattr(selftest, "TrainStep", lambda model, settings: lambda images, labels: torch.tensor(0.5))
    with pytest.raises(SelftestFailure, match="changed 0 weights"):
        selftest.check_training_step(source)


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (Verdict("regions"), "ok", "DALI .* with nvImageCodec"),
        (Verdict("whole", "killed"), "warn", r"decodes regions wrongly here \(killed\): whole images"),
        (MISSING, "warn", "it cannot be imported"),
    ],
)
def test_the_decoder_of_a_gpu_is_tried_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, found: Verdict | LoaderError, state: str, words: str
) -> None:
    def working_way(device: torch.device, *, again: bool) -> Verdict:
        assert (device.index, again) == (1, True)  # whatever was kept
        if isinstance(found, LoaderError):
            raise found
        return found

    monkeypatch.setattr(selftest, "usable_device", torch.device)
    monkeypatch.setattr(selftest, "working_way", working_way)
    first = next(selftest.selftest("cuda:1"))
    assert (first.name, first.state, first.fix is None) == ("GPU decoder", state, state == "ok")
    assert re.search(words, first.found)
