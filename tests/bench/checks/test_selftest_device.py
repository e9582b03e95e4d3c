"""The part of the self-test that needs a device: its comparisons and messages on the CPU, its success on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from altered_engine import Altered, Change

from penstock.bench.checks import selftest, selftest_device
from penstock.bench.checks.finding import Finding
from penstock.bench.checks.selftest_device import SelftestFailure, check_device
from penstock.loaders import Loader, create_loader
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.spec import imagenet_train

CPU = torch.device("cpu")
NAMES = [f"cpu, 2 {workers}, {dtype}" for workers in ("threads", "processes") for dtype in ("uint8", "bfloat16")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return selftest.write_images(tmp_path_factory.mktemp("selftest"))


def findings(source: Source) -> list[Finding]:
    return list(check_device(source, CPU, imagenet_train(32), selftest.BATCH))


def other_loaders(monkeypatch: pytest.MonkeyPatch, wrap: Any) -> list[dict[str, Any]]:
    """Wrap the loaders with workers; return the settings of all opened loaders."""
    opened: list[dict[str, Any]] = []

    def create(source: Source, **settings: Any) -> Any:
        opened.append(settings)
        loader = create_loader(source, **settings)
        return wrap(loader) if settings["workers"] else loader

    monkeypatch.setattr(selftest_device, "create_loader", create)
    return opened


def test_workers_of_both_kinds_serve_both_dtypes_and_the_path_is_named(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = other_loaders(monkeypatch, lambda loader: loader)
    found = findings(source)
    assert [finding.name for finding in found] == NAMES
    assert {finding.state for finding in found} == {"warn"}
    assert found[0].found == "24 images as on the CPU, bit for bit; torch, slots that are not page-locked"
    assert found[1].found == "24 images as on the CPU; torch, slots that are not page-locked"
    assert [settings["workers"] for settings in opened] == [0, 2] * 4
    for settings in opened:
        augment = settings["pipeline"].augment
        assert not augment.unfused
        assert augment.mixes == (settings["dtype"] == torch.bfloat16)


def test_fused_kernels_and_page_locked_slots_are_ok(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    class OfADevice(Altered):
        def describe(self) -> dict[str, object]:
            return {**super().describe(), "augmentations": selftest_device.FUSED, "page_locked": True}

    other_loaders(monkeypatch, lambda loader: OfADevice(loader, Change()))
    found = findings(source)
    assert {(finding.state, finding.fix) for finding in found} == {("ok", None)}
    assert {finding.found for finding in found} == {
        "24 images as on the CPU, bit for bit; fused kernels, page-locked slots"
    }


class OneLevelOff(Altered):
    """A loader with one pixel a level higher, in one dtype."""

    dtype = torch.uint8

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader, Change())

    def batches(self) -> Any:
        for batch in self._loader.batches():
            if batch.step == 1 and batch.images.dtype == self.dtype:
                batch.images[2, 1, 3, 4] += 1 if batch.images[2, 1, 3, 4] < 255 else -1
            yield batch


class OtherLabel(OneLevelOff):
    def batches(self) -> Any:
        for batch in self._loader.batches():
            if batch.step == 2:
                batch.labels[5] += 1
            yield batch


@pytest.mark.parametrize(
    ("wrap", "dtype", "words"),
    [
        (OneLevelOff, torch.uint8, "cpu, 2 threads, uint8: 1 of 8 .* step 1, row 2, pixels by 1"),
        (OneLevelOff, torch.bfloat16, "cpu, 2 threads, bfloat16: 1 of 8 .* step 1, row 2"),
        (OtherLabel, torch.uint8, "cpu, 2 threads, uint8: 1 of 8 images or labels .* step 2, row 5, pixels by 0"),
    ],
)
def test_another_pixel_or_label_is_named_and_fails_the_self_test(
    source: Source, monkeypatch: pytest.MonkeyPatch, wrap: type[OneLevelOff], dtype: torch.dtype, words: str
) -> None:
    monkeypatch.setattr(wrap, "dtype", dtype)
    other_loaders(monkeypatch, wrap)
    with pytest.raises(SelftestFailure, match=words):
        selftest._run_check("cpu", lambda: findings(source))


def test_the_self_test_checks_only_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also trains on that device."""
    asked: list[str] = []

    def check(source: Source, device: torch.device, *_: Any) -> list[Finding]:
        asked.append(str(device))
        return [Finding("the device", "ok", "")]

    def train(source: Source, device: str) -> Finding:
        asked.append(f"training on {device}")
        return Finding("training step", "ok", "")

    monkeypatch.setattr(selftest, "check_device", check)
    monkeypatch.setattr(selftest, "check_training_step", train)
    monkeypatch.setattr(selftest, "check_engines", lambda source, cache: [])
    monkeypatch.setattr(selftest, "check_gpu_decoder", lambda device: Finding("GPU decoder", "ok", ""))
    monkeypatch.setattr(selftest, "usable_device", torch.device)
    assert "the device" not in [finding.name for finding in selftest.selftest("cpu")]
    assert asked == ["training on cpu"]
    asked.clear()
    assert "the device" in [finding.name for finding in selftest.selftest("cuda:1")]
    assert asked == ["cuda:1", "training on cuda:1"]


@pytest.mark.gpu
def test_on_a_gpu_the_fused_kernels_run_over_page_locked_slots() -> None:
    found = {finding.name: finding for finding in selftest.selftest("cuda")}
    of_device = [finding for name, finding in found.items() if name.startswith("cuda")]
    assert len(of_device) == len(NAMES)
    assert {finding.state for finding in of_device} == {"ok"}, of_device
    assert found["training step"].found.startswith("resnet18 on cuda")
