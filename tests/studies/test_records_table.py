"""A table of records: a row each, a dash for what was not measured, and no row for another file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_documents import document, measured
from records_table import records_table

from penstock.bench.run.dali_pipeline import DALI_PIPELINE


def test_a_row_holds_what_was_measured(tmp_path: Path) -> None:
    paths = [tmp_path / "whole.json", tmp_path / "loader.json"]
    whole = document()
    paths[0].write_text(
        json.dumps({**whole, "measured": [*whole["measured"], measured("baseline", DALI_PIPELINE, 5000.0)]})
    )
    paths[1].write_text(json.dumps({"measured": [measured("loader", "penstock, hdf5 backend", 2000.0)]}))
    header, _, *rows = records_table(paths).splitlines()
    names = header.strip("| ").split(" | ")
    first, second = (dict(zip(names, row.strip("| ").split(" | "), strict=True)) for row in rows)
    assert (first["record"], first["images/s"], first["lowest to highest round"]) == (
        "whole",
        "1,779",
        "1,690 to 1,868",
    )
    assert (first[DALI_PIPELINE], first["model alone"], first["loader + model"]) == ("5,000", "81", "64 (25% waiting)")
    assert (first["share of the model's rate"], second["share of the model's rate"]) == (f"{64 / 81:.3f}", "-")
    assert (second["images/s"], second[DALI_PIPELINE], second["loader + model"]) == ("2,000", "-", "-")
    paths[1].write_text('{"backend": "torch"}')
    with pytest.raises(ValueError, match=r"loader\.json: this is no record"):
        records_table(paths)
