"""Images that libjpeg repairs: the same behaviour on every backend and with every decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jpeg_parts as jp
import numpy as np
import pytest
import torch
from broken_scans import make_repairable
from jpeg_samples import stoppable
from odd_images import jpeg, textured
from photo_folder import photo
from repaired_jpegs import cut, lengthen_segment

from penstock.loaders import Boxes, LoaderError, create_loader, open_source, with_fields
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.front.loader import Loader
from penstock.loaders.order import ledger as ledger_module
from penstock.loaders.order.bad_samples import BadSamplePolicy
from penstock.loaders.order.ledger import BadSample, EpochLedger
from penstock.pipelines import ImagePipeline, imagenet_eval, imagenet_train
from penstock.pipelines.sample import decode

ENGINES: dict[str, dict[str, Any]] = {
    "simplejpeg": {"decoder": "simplejpeg"},
    "turbojpeg": {"decoder": "turbojpeg"},
    "pillow": {"decoder": "pillow"},
    "torch, 2 workers": {"workers": 2, "decoder": "pillow"},
    "hdf5": {"backend": "hdf5", "cache": "strips.h5"},
    "hdf5, pixels": {"backend": "hdf5", "cache": "raw.h5", "encoding": Encoding(kind="raw")},
    "dali": {"backend": "dali"},
    "dali, 2 readers": {"backend": "dali", "workers": 2, "readers": 2},
    "dali from a cache": {"backend": "dali", "cache": "strips.h5"},
}
RESTART = jpeg(textured(61, 83), quality=80, restart_marker_blocks=3, subsampling=2)
DAMAGED = {
    3: cut(photo(3), 0.5),
    4: cut(photo(4), 0),
    9: jp.with_frame(photo(9), marker=0xC9),
    12: cut(jpeg(textured(61, 83), progressive=True), 0.4),
    17: lengthen_segment(RESTART),
    20: make_repairable(RESTART, 0),
}
SOUND = {5: RESTART, 6: jpeg(textured(61, 83), progressive=True), 7: stoppable()["420_83x61"] + b"trailing"}
FULL = ImagePipeline(size=(24, 24), crop="full", flip=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "photos"
    (root / "only").mkdir(parents=True)
    for number in range(24):
        data = {**DAMAGED, **SOUND}.get(number) or photo(number)
        (root / "only" / f"{number:02d}.jpg").write_bytes(data)
    return root


def open_loader(folder: Any, **settings: Any) -> Loader:
    if "cache" in settings:
        settings["cache"] = folder.parent / settings["cache"]
    defaults = {"pipeline": FULL, "batch_size": 4, "dtype": torch.uint8, "workers": 0, "seed": 3}
    return create_loader(folder, **{**defaults, **settings})


def ledgers_of(loader: Loader, epochs: int) -> list[dict[str, Any]]:
    with loader:
        while loader.epoch < epochs:
            for _ in loader:
                pass
        ledgers = [ledger.as_dict() for ledger in loader.ledgers()]
        assert loader.stats().repaired == sum(ledger.repaired for ledger in loader.ledgers())
    for ledger in ledgers:
        for entry in (*ledger["bad"], *ledger["repairs"]):  # type: ignore[misc]
            entry["path"] = entry["path"].rpartition("/")[2]
            entry["cause"] = entry["cause"].partition(":")[0]
    return ledgers


def test_repaired_images_are_counted_and_named(folder: Path) -> None:
    with open_loader(folder) as loader:
        for _ in loader:
            pass
        ledger = loader.ledger()
        assert loader.stats().repaired == 6
    assert (ledger.planned, ledger.delivered, ledger.replaced, ledger.repaired) == (24, 24, 0, 6)
    assert [entry.sample for entry in ledger.repairs] == list(DAMAGED)
    assert {(entry.code, entry.sample == entry.substitute) for entry in ledger.repairs} == {("E-REPAIRED", True)}
    first = json.loads(json.dumps(ledger.as_dict()))["repairs"][0]
    assert first["cause"] == "libjpeg repaired it: Corrupt JPEG data: premature end of data segment"
    assert first["path"].endswith("only/03.jpg")


def test_a_sample_refused_for_its_fields_is_not_counted_as_repaired(folder: Path) -> None:
    boxes = np.array([[[0, 0, 1, 1]]] * 24, np.float32)
    boxes[3, 0, 2] = 9999  # outside the image, which libjpeg repairs
    data = with_fields(folder, boxes=Boxes(boxes, [[0]] * 24))
    with open_loader(data, decoder="simplejpeg", on_bad_sample="replace") as loader:
        assert sum(len(batch["images"]) for batch in loader) == 23
        ledger = loader.ledger()
    assert [entry.sample for entry in ledger.bad] == [3]
    assert [entry.sample for entry in ledger.repairs] == list(DAMAGED)[1:]


@pytest.fixture(scope="module")
def expected_ledgers(folder: Path) -> dict[str, list[dict[str, Any]]]:
    settings = {"pipeline": imagenet_train(24)}
    return {
        policy: ledgers_of(open_loader(folder, **settings, on_repaired=policy), 3) for policy in ("count", "replace")
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["count", "replace"])
def test_ledgers_are_equal_with_every_decoder(
    folder: Path, engine: str, policy: str, expected_ledgers: dict[str, list[dict[str, Any]]]
) -> None:
    settings, expected = {"pipeline": imagenet_train(24), "on_repaired": policy}, expected_ledgers[policy]
    assert ledgers_of(open_loader(folder, **settings, **ENGINES[engine]), 3) == expected
    counted, replaced = (sum(int(ledger[name]) for ledger in expected) for name in ("repaired", "replaced"))
    assert (counted > 9, replaced > 9) == (policy == "count", policy == "replace")
    if ENGINES[engine].get("cache") == "raw.h5":
        kinds = open_cache(folder.parent / "raw.h5").records["kind"].tolist()
        assert [sample for sample, kind in enumerate(kinds) if kind == 0] == list(DAMAGED)  # FILE


@pytest.mark.parametrize("engine", ["simplejpeg", "pillow", "dali"])
def test_raise_names_the_first_in_order(folder: Path, engine: str) -> None:
    loader = open_loader(folder, on_repaired="raise", shuffle=False, **ENGINES[engine])
    with loader, pytest.raises(LoaderError, match=r"E-REPAIRED.*sample=3 .*premature end.*on_repaired='count'"):
        list(loader)


@pytest.fixture
def decoded_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each file that libjpeg decodes a second time for its report."""
    sizes: list[int] = []
    ask = decode._find_first_message
    monkeypatch.setattr(decode, "_find_first_message", lambda *given: sizes.append(len(given[0])) or ask(*given))
    return sizes


@pytest.mark.parametrize("engine", ["simplejpeg", "pillow", "dali"])
def test_ignore_neither_counts_nor_decodes_again(folder: Path, engine: str, decoded_again: list[int]) -> None:
    with open_loader(folder, on_repaired="ignore", **ENGINES[engine]) as loader:
        assert sum(len(images) for images, _ in loader) == 24
        assert loader.ledger().repaired == 0
    assert decoded_again == []


@pytest.mark.parametrize("engine", ["pillow", "dali"])
def test_a_sound_file_is_decoded_again_once_and_only_on_demand(
    folder: Path, engine: str, decoded_again: list[int]
) -> None:
    with open_loader(folder, pipeline=imagenet_train(24), **ENGINES[engine]) as loader:
        assert loader.describe()["on_repaired"] == "ignore"  # a decoder that does not report repairs is not made slower
        list(loader)
    assert decoded_again == []
    with open_loader(folder, pipeline=imagenet_train(24), on_repaired="count", **ENGINES[engine]) as loader:
        list(loader)
        first = len(decoded_again)
        list(loader)
    assert first >= 24
    assert len(decoded_again) - first <= 2 * len(DAMAGED)
    with open_loader(folder, pipeline=imagenet_train(24)) as loader:
        assert loader.describe()["on_repaired"] == "count"


def test_a_file_with_a_warning_in_its_header_is_decoded_again_once(tmp_path: Path, decoded_again: list[int]) -> None:
    """Its first warning hides later ones, but it is not decoded again for every crop of every epoch."""
    (tmp_path / "only").mkdir()
    data = bytearray(jpeg(textured(61, 83)))
    at = data.index(b"JFIF\0") + 5
    data[at] = 9  # its revision
    (tmp_path / "only" / "a.jpg").write_bytes(bytes(data))
    with open_loader(tmp_path, pipeline=imagenet_train(24), batch_size=1) as loader:
        for _ in range(4):
            list(loader)
        assert loader.stats().repaired == 0
    assert 1 <= len(decoded_again) <= 2


def test_replaced_in_evaluation_is_padding(folder: Path) -> None:
    with open_loader(folder, pipeline=imagenet_eval(24), on_repaired="replace", with_index=True) as loader:
        served = [i for _, _, index in loader for i in index.tolist() if i >= 0]
        bad = {entry.sample for entry in loader.ledger().bad}
    assert sorted(served) == [sample for sample in range(24) if sample not in bad]
    assert {3, 4, 9, 12} <= bad <= set(DAMAGED)


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"decoder": "pillow"}, {"backend": "dali"}])
def test_the_error_contains_the_fix_that_a_source_names(folder: Path, options: dict[str, Any]) -> None:
    source = open_source(folder, max_file_bytes=100)
    with open_loader(source, **options) as loader, pytest.raises(LoaderError, match="E-BOMB") as caught:
        next(iter(loader))
    size = (folder / "only" / f"{caught.value.sample:02d}.jpg").stat().st_size
    assert caught.value.fix.startswith(f"open_source(folder, max_file_bytes={size})")


def entry(code: str) -> BadSample:
    return BadSample(1, code, "why", b"a.jpg", 2, 0)


@pytest.mark.parametrize("on_bad_sample", ["raise", "replace"])
@pytest.mark.parametrize("on_repaired", ["raise", "replace"])
def test_each_policy_covers_only_its_own_samples(on_bad_sample: str, on_repaired: str) -> None:
    policy = BadSamplePolicy(on_bad_sample=on_bad_sample, on_repaired=on_repaired)
    assert policy.substitutes == ("replace" in (on_bad_sample, on_repaired))
    for code, says in (("E-TRUNC", on_bad_sample), ("E-REPAIRED", on_repaired)):
        if says == "raise":
            with pytest.raises(LoaderError) as caught:
                policy.judge((entry(code),), EpochLedger(0), backend="torch", rank=0)
            assert caught.value.code == code
        else:
            policy.judge((entry(code),), EpochLedger(0), backend="torch", rank=0)


def test_the_list_of_repairs_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_REPAIRS", 4)
    with open_loader(folder) as loader:
        for _ in loader:
            pass
        ledger = loader.ledger()
    assert (ledger.repaired, len(ledger.repairs)) == (6, 4)
