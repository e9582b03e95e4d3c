"""`penstock cache advise`: all encodings of the user's data are built, measured alternately, and removed."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from command_line import penstock_here

from penstock.bench.probe.data.wrapped_sources import sample_of
from penstock.bench.record.cache_advice import FILES, LOSSLESS, AdviceSettings
from penstock.bench.report.sections_choices import tradeoff_section
from penstock.bench.report.text import rate_text
from penstock.bench.run import advise_cache as cache_advice
from penstock.bench.run.advise_cache import ENCODINGS, advise_cache, build_options
from penstock.loaders import open_source
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines import LoaderError
from penstock.pipelines.errors import size_text

NUM_PHOTOS = 36
FAST = AdviceSettings(sample=12, size=32, batch_size=4, workers=0, seconds=0.05, rounds=2)


def test_offers_are_measured_alternately_and_nothing_is_left(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_advice.tempfile, "tempdir", str(tmp_path))
    asked: list[tuple[int, int, str]] = []
    present: list[int] = []

    def progress(*now: object) -> None:
        asked.append(now)  # type: ignore[arg-type]
        present.append(len(list(tmp_path.rglob("*.h5"))))

    source = open_source(photos)
    advice = advise_cache(source, FAST, progress)
    names = [offer.name for offer in advice.offers]
    lossy = ["--resize 500 --quality 90", "--resize 400 --quality 90", "--resize 256 --quality 90"]
    assert names == [FILES, LOSSLESS, *lossy, "--encoding raw --resize 256"]
    assert [what for _, _, what in asked[5:]] == names * 2
    assert [(done, total) for done, total, _ in asked] == [(k, 17) for k in range(17)]
    assert present == [0, 1, 2, 3, 4, *[5] * 12]
    assert os.listdir(tmp_path) == []
    json.dumps(asdict(advice))
    files = advice.offers[0]
    assert files.bytes_an_image == sum(len(source.read(3 * k)) for k in range(12)) / 12
    for offer in advice.offers:
        assert len(offer.rounds) == 2
        assert min(offer.rounds) <= offer.images_per_s <= max(offer.rounds)
        assert offer.whole_bytes == 36 * offer.bytes_an_image
        assert (offer.psnr_db is None) == offer.lossless == (offer.name in (FILES, LOSSLESS))


def test_sizes_are_those_of_a_cache_of_the_sample(photos: Path, tmp_path: Path) -> None:
    encoding = Encoding(kind="raw", resize=16)
    advice = advise_cache(open_source(photos), FAST, lambda *_: None, (encoding,))
    build_cache(sample_of(open_source(photos), 12), tmp_path / "x.h5", encoding, workers=0)
    assert advice.offers[1].bytes_an_image == pytest.approx((tmp_path / "x.h5").stat().st_size / 12, rel=0.02)
    assert 10 < (advice.offers[1].psnr_db or 0) < 60


def test_encodings_that_cannot_be_built_are_left_out_with_a_reason(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = build_cache

    def refusing(sample: Source, path: Path, encoding: Encoding, *, workers: int) -> None:
        if encoding.lossless:
            raise LoaderError("E-DEPENDENCY", "h5py is not here")
        plain(sample, path, encoding, workers=workers)

    monkeypatch.setattr(cache_advice, "build_cache", refusing)
    advice = advise_cache(open_source(photos), FAST, lambda *_: None, (ENCODINGS[0], ENCODINGS[-1]))
    assert [offer.name for offer in advice.offers] == [FILES, "--encoding raw --resize 256"]
    assert tradeoff_section(advice).notes == ("jpeg, lossless was left out: h5py is not here",)


def test_a_cache_as_data_is_refused(photos: Path, tmp_path: Path) -> None:
    build_cache(open_source(photos), tmp_path / "x.h5", workers=0)
    with pytest.raises(ValueError, match="already a cache"):
        advise_cache(open_source(tmp_path / "x.h5"), FAST, lambda *_: None)


@pytest.mark.parametrize(("encoding", "options"), [(ENCODINGS[0], ""), (ENCODINGS[4], "--encoding raw --resize 256")])
def test_options_are_those_of_the_command(encoding: Encoding, options: str) -> None:
    assert build_options(encoding) == options


def test_the_command_prints_a_table_and_writes_record_and_page(photos: Path, tmp_path: Path) -> None:
    fast = ("--sample", 8, "--seconds", 0.1, "--rounds", 1, "--workers", 0, "--size", 32, "--batch-size", 4)
    written = ("--json", tmp_path / "a.json", "--report", tmp_path / "a.html")
    run = penstock_here("cache", "advise", photos, *fast, *written, env={"COLUMNS": "80"})
    assert (run.returncode, run.stderr) == (0, "")
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["data"]["sample"] == 8
    assert "…" not in run.stdout  # nothing is cut, and the options of a row are in one line
    lines = [" ".join(line.split()) for line in run.stdout.splitlines()]
    rates, sizes = re.findall(r'role="img" aria-label="([^"]*)"', (tmp_path / "a.html").read_text("utf-8"))
    for offer in document["offers"]:
        begin = f"{offer['name']} {size_text(round(offer['whole_bytes']))} "
        (line,) = [line for line in lines if line.startswith(begin)]
        rate, of_files = offer["images_per_s"], document["offers"][0]["images_per_s"]
        shown = rate_text(rate)
        assert re.search(rf"{offer['name']}, [^:]*: {shown}[;.]", rates)
        assert re.search(rf"{offer['name']}, [^:]*: {offer['bytes_an_image'] / 1e3:,.0f} kB", sizes)
        assert f" {shown} {shown} to {shown} {rate / of_files:.2f} × " in line  # of the one round
        assert line.endswith("lossless" if offer["lossless"] else f"{offer['psnr_db']:.1f} dB")
