"""DALI's ways of decoding are tried in a separate process: after a crash, a wrong pixel or a hang, the next is used."""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from dali_streams import open_loader, stream
from make_planner import make_planner
from memory_source import MemorySource
from old_nvjpeg import give_regions_wrong_edges
from photo_folder import photo

from penstock.loaders import LoaderError
from penstock.loaders.dali import dali_engine, dali_probe, dali_versions
from penstock.loaders.dali.dali_probe import OURS, REGIONS, WHOLE, Verdict, chosen_way, try_way, working_way
from penstock.pipelines.errors import EXIT_DATA, EXIT_OK, EXIT_RESOURCE
from penstock.pipelines.sample.dali_graph import DaliGraph

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without a cache, and a process without verdicts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(dali_probe, "_found", {})
    monkeypatch.setattr(dali_probe, "_warned", set())


class Child:
    """Replaces the probe by Python code for each way of decoding; records which ways were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **ways: str) -> None:
        self._log = folder / "begun"
        self._log.touch()
        cases = "".join(f"if sys.argv[1] == {way!r}: {what}\n" for way, what in ways.items())
        code = f"import os, sys, time\nopen({str(self._log)!r}, 'a').write(sys.argv[1] + ' ')\n{cases}"
        monkeypatch.setattr(dali_probe, "_COMMAND", (sys.executable, "-S", "-c", code))

    @property
    def begun(self) -> list[str]:
        return self._log.read_text().split()


CRASH = f"os.kill(os.getpid(), {int(signal.SIGSEGV)})"
WRONG = "print('an image is 83.1 levels from it'); sys.exit(3)"


def test_the_probe_passes_here_in_a_separate_process() -> None:
    assert try_way(WHOLE, CPU) == ("", True)


def test_regions_of_the_test_images_match_libjpeg(capsys: pytest.CaptureFixture[str]) -> None:
    assert dali_probe.main([REGIONS, ""]) == EXIT_OK
    assert not capsys.readouterr().out.strip()


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try only two sizes of the test images, where each image shows the fault."""
    monkeypatch.setattr(dali_probe, "_SIZES", ((61, 83), (130, 40)))


SPOILS: dict[str, Any] = {
    "another channel order": lambda images: images.flip(3),
    "the neighbour's pixels": lambda images: images.roll(1, 0),
    "a mirrored image": lambda images: images.flip(2),
    "nothing": torch.zeros_like,
}


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("name", SPOILS)
def test_a_wrong_decoder_is_detected(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take = DaliGraph.take
    monkeypatch.setattr(DaliGraph, "take", lambda graph: SPOILS[name](take(graph)))
    assert dali_probe.main([REGIONS, ""]) == EXIT_DATA
    assert "levels from libjpeg's pixels on average, " in capsys.readouterr().out


def test_wrong_edges_of_regions_are_detected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are one pixel wide and visible only where the chroma changes, so the mean over the image misses them."""
    give_regions_wrong_edges(monkeypatch)
    assert dali_probe.main([REGIONS, ""]) == EXIT_DATA
    assert re.search(r" \d\d\.\d more on average in an outermost row or column, window \(", capsys.readouterr().out)
    assert dali_probe.main([WHOLE, ""]) == EXIT_OK


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LoaderError("E-CORRUPT", "DALI: nvImageCodec failure: '#3'"), EXIT_DATA),  # the error on an A100
        (LoaderError("E-DEPENDENCY", "no driver", fix="install one"), EXIT_RESOURCE),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"), EXIT_RESOURCE),  # not a fault of DALI
    ],
)
@pytest.mark.usefixtures("few_images")
def test_refused_images_count_as_wrong_and_a_failed_start_is_an_error(
    error: RuntimeError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(graph: DaliGraph, tasks: object) -> None:
        raise error

    monkeypatch.setattr(DaliGraph, "feed", refuse)
    assert dali_probe.main([REGIONS, ""]) == code
    assert getattr(error, "cause", str(error)) in capsys.readouterr().out


def other(module: ModuleType, name: str, value: object) -> Callable[[pytest.MonkeyPatch, Path], None]:
    return lambda monkeypatch, _: monkeypatch.setattr(module, name, lambda: value)


def write(text: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    return lambda _, folder: next(folder.glob("penstock/*.json")).write_text(text) and None


@pytest.mark.parametrize(
    ("change", "begun"),
    [
        (lambda *_: None, 1),
        (other(dali_versions, "codec_version", "0.10.0"), 2),
        (other(dali_versions, "nvjpeg_version", (13, 4, 0)), 2),
        (other(dali_probe, "driver_version", "581.0"), 2),
        *((write(text), 2) for text in ("", "{", '{"a": 1}', '{"a": ["half", ""]}', '{"a": ["whole"]}')),
    ],
)
def test_a_verdict_is_saved_for_these_versions_unless_its_file_is_damaged(
    change: Callable[..., None], begun: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = Child(monkeypatch, tmp_path)
    for _ in range(2):
        assert working_way(CPU) == Verdict(REGIONS, "")
    assert child.begun == [REGIONS]
    monkeypatch.setattr(dali_probe, "_found", {})  # another process
    change(monkeypatch, tmp_path)
    assert working_way(CPU) == Verdict(REGIONS, "")
    assert len(child.begun) == begun
    working_way(CPU, again=True)
    assert len(child.begun) == begun + 1


def test_verdicts_are_added_to_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Verdicts for other versions stay, whichever version of Penstock wrote them."""
    Child(monkeypatch, tmp_path)
    working_way(CPU)
    (file,) = tmp_path.glob("penstock/*.json")
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({"DALI 2.2.0 with nvImageCodec 0.9.0 on a GPU": ["whole", "it crashes"], **kept}))
    working_way(CPU, again=True)
    assert list(json.loads(file.read_text()).values()) == [["whole", "it crashes"], ["regions", ""]]


def on_gpu_with_nvjpeg(monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...] | None) -> torch.device:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(dali_versions, "nvjpeg_version", lambda: version)
    return torch.device("cuda", 0)


@pytest.mark.parametrize("version", [(12, 4, 0), (13, 1, 0)])
def test_regions_are_not_tried_with_an_old_nvjpeg(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: tuple[int, ...]
) -> None:
    gpu, child = on_gpu_with_nvjpeg(monkeypatch, version), Child(monkeypatch, tmp_path)
    words = r"nvJPEG 1\d\.\d\.0 decodes regions wrongly here .*: whole images are .*; use nvJPEG 13\.2 or newer"
    with pytest.warns(RuntimeWarning, match=words):
        assert chosen_way(gpu) == WHOLE
    assert child.begun == [WHOLE]
    monkeypatch.setattr(dali_probe, "_found", {})  # another process
    assert working_way(gpu).way == WHOLE
    assert child.begun == [WHOLE]
    on_gpu_with_nvjpeg(monkeypatch, (13, 2, 0))
    assert working_way(gpu) == Verdict(REGIONS, "")
    assert child.begun == [WHOLE, REGIONS]


def test_requesting_regions_with_an_old_nvjpeg_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu_with_nvjpeg(monkeypatch, (12, 4, 0))
    monkeypatch.setattr(dali_engine, "numbered", lambda device: CPU)
    settings = make_planner(MemorySource([photo(0)] * 4), device="cuda:0")
    with pytest.warns(RuntimeWarning, match=r"nvJPEG 12\.4\.0: .*edges of regions wrongly; .*decode='whole'"):
        dali_engine.open_engine(settings, dali_engine.DaliOptions(workers=0, decode=REGIONS))


def test_a_crash_leads_to_whole_images_and_warns_once_per_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = Child(monkeypatch, tmp_path, regions=CRASH)
    versions = r"DALI [\d.]+ with nvImageCodec [\d.]+ and nvJPEG [\d.]+ decodes regions wrongly here"
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=f"{versions} .*SIGSEGV.*: whole images .*; use ") as warned:
            assert chosen_way(CPU) == WHOLE
        assert warned[0].filename == __file__  # the caller's line
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert chosen_way(CPU) == WHOLE
        monkeypatch.setattr(dali_probe, "_found", {})
        monkeypatch.setattr(dali_probe, "_warned", set())
    assert child.begun == [REGIONS, WHOLE]


def test_our_decoder_is_used_if_neither_way_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Child(monkeypatch, tmp_path, regions=CRASH, whole=WRONG)
    verdict = working_way(CPU)
    assert verdict.way == OURS
    assert "SIGSEGV; whole images too: an image is 83.1 levels from it" in verdict.why


@pytest.mark.parametrize("ending", ["time.sleep(9)", f"os.kill(os.getpid(), {int(signal.SIGKILL)})", "sys.exit(1)"])
def test_a_verdict_that_may_be_the_machines_fault_is_not_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    monkeypatch.setattr(dali_probe, "_TIMEOUT_S", 1.0)
    child = Child(monkeypatch, tmp_path, regions=ending)
    assert working_way(CPU).way == WHOLE
    assert working_way(CPU).way == WHOLE
    assert child.begun == [REGIONS, WHOLE]  # once per process
    monkeypatch.setattr(dali_probe, "_found", {})
    working_way(CPU)
    assert len(child.begun) == 4


def test_a_failed_start_on_a_gpu_gives_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In EXCLUSIVE_PROCESS mode a second process gets no context, but DALI works in this one."""
    gpu = on_gpu_with_nvjpeg(monkeypatch, (13, 2, 0))
    line = str(LoaderError("E-DEPENDENCY", "DALI cannot run on GPU 0: all CUDA-capable devices are busy"))
    child = Child(monkeypatch, tmp_path, regions=f"print({line!r}); sys.exit(7)")
    words = r"could not be tried here .*are busy\): whole images .*compute mode .*decode='regions'"
    with pytest.warns(RuntimeWarning, match=words):
        assert chosen_way(gpu) == WHOLE
    monkeypatch.setattr(dali_probe, "_found", {})  # another process
    assert not working_way(gpu).was_tried
    assert child.begun == [REGIONS, REGIONS]


def test_was_tried_is_stored_and_not_parsed_from_the_reason() -> None:
    words = "a separate process cannot use the GPU"
    assert "decodes regions wrongly here" in dali_probe.describe_verdict(Verdict(WHOLE, words))[0]
    assert "could not be tried here" in dali_probe.describe_verdict(Verdict(WHOLE, "busy", was_tried=False))[0]


def test_a_probe_that_crashes_leaves_no_core_file(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: limits.append((which, limit[0])))
    monkeypatch.setattr(dali_probe, "wrong_images", lambda *_: "".join(f"{limit}" for limit in limits[1:]))
    assert dali_probe.main([REGIONS, ""]) == EXIT_OK
    assert limits == [(resource.RLIMIT_CORE, 0)]


def test_dali_that_does_not_run_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = str(LoaderError("E-DEPENDENCY", "DALI cannot run on GPU 0: no driver", fix="install a driver"))
    Child(monkeypatch, tmp_path, regions=f"print({line!r}); sys.exit(7)")
    with pytest.raises(LoaderError, match="cannot run on GPU 0: no driver") as caught:
        working_way(CPU)
    assert (caught.value.code, caught.value.fix) == ("E-DEPENDENCY", "install a driver")


def test_an_engine_on_a_gpu_uses_the_way_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dali_engine, "numbered", lambda device: CPU)
    settings = make_planner(MemorySource([photo(0)] * 4), device="cuda:0")
    options = dali_engine.DaliOptions(workers=0)
    Child(monkeypatch, tmp_path, regions=CRASH)
    with pytest.warns(RuntimeWarning, match="decodes regions wrongly"):
        engine = dali_engine.open_engine(settings, options)
    assert isinstance(engine, dali_engine.DaliEngine)
    assert (engine.describe()["decodes"], engine._verifier is not None) == (WHOLE, True)
    assert engine._verifier._per_batch == 1  # type: ignore[union-attr]
    for way, kind in ((REGIONS, "DaliEngine"), (OURS, "ThreadEngine")):
        chosen = dali_engine.DaliOptions(workers=0, decode=way)  # then nothing is tried
        assert type(dali_engine.open_engine(settings, chosen)).__name__ == kind


def test_the_stream_does_not_depend_on_the_way_of_decoding(photos: Path) -> None:
    served = [stream(photos, batch_size=8, decode=way) for way in (REGIONS, WHOLE, OURS)]
    assert [one.numbers() for one in served[1:]] == [served[0].numbers()] * 2
    assert np.array_equal(served[0].pixels, served[1].pixels)
    assert served[2].distance(served[0]).max() <= 1
    with open_loader(photos, backend="torch", batch_size=8) as ours:
        first = next(iter(ours))[0].permute(0, 2, 3, 1).numpy()
    assert np.array_equal(first, served[2].pixels[:8])
