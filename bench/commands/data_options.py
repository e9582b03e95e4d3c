"""Options that select a part of the data, or describe how a table or tars store it, for several commands."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.bench.record.settings import setting


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of open_source; a command receives those that were given."""

    subset: str | None = setting(
        None, "Part of the samples: ':0.9', '10%:50%', ':1000', '::10', or a file of indices (.npy, .txt, .json)."
    )
    max_per_class: int | None = setting(None, "Maximum number of samples per class.", min=1)
    image: str | None = setting(None, "Table column with the image paths; suffix of the images in tars.")
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Table column with the labels; where tars store them, such as cls or json:label. "
            "Repeat it for several."
        ),
    ] = None
    root: str | None = setting(None, "Folder that the paths in a table are relative to.")
    member_list: str | None = setting(None, "Suffix of lists of members next to tars: idx (wds2idx) or json (hfutils).")
    index: str | None = setting(None, "Data by URL: folder or URL of an index that `penstock index --out` wrote.")
    requests: int | None = setting(
        None, "Data by URL: most concurrent requests; by default, as many as are worth it.", min=1
    )
    bytes_ahead: int | None = setting(
        None, "Data by URL: bytes to fetch before they are needed, 256 MiB by default.", min=1
    )
    local_cache: str | None = setting(None, "Data by URL: local folder for a copy of the fetched data.")
    local_bytes: int | None = setting(None, "Data by URL: approximate size limit of this folder in bytes.", min=1)
    retry_s: float | None = setting(
        None, "Data by URL: seconds for which failing requests are repeated, 300 by default.", min=0
    )
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME:VALUE", help="Data by HTTP: header of all requests. Repeat it for several."
        ),
    ] = None
    classes: str | None = setting(
        None, "Class names by class number, separated by commas; or a file with one per line."
    )
    missing_labels: str | None = setting(None, "Rows without a label: raise, the default, or leave_out.")

    @staticmethod
    def read(values: dict[str, Any]) -> dict[str, Any]:
        """Return the options that were given, as arguments of open_source."""
        labels = values["label"] or [None]
        label = labels if len(labels) > 1 else labels[0]
        from penstock.loaders.data.remote.access import Headers  # here: help must not import torch

        headers = Headers.parse(values["headers"]) if values["headers"] else None
        read = {**values, "label": label, "classes": _read_classes(values["classes"]), "headers": headers}
        return {name: value for name, value in read.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class TextDataOptions(DataOptions):
    """Options of open_source, with those of the texts."""

    text: str | None = setting(
        None, "Table column with the texts; for tars and image files their suffix, such as txt, or json:FIELD."
    )
    missing_text: str | None = setting(None, "Samples without a text: raise, the default, or leave_out.")


def _read_classes(text: str | None) -> list[str] | None:
    """Return class names from a list with commas, or from a file with one name per line."""
    if text is None:
        return None
    names = Path(text).read_text("utf-8", "surrogateescape").splitlines() if os.path.isfile(text) else text.split(",")
    return [name.strip() for name in names if name.strip()]
