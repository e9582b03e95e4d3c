"""Defines the options that choose a part of the data, or say how a table or tars hold it, for several commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.bench.commands.shared_options import with_more_options

_PANEL = "Data"


def _option(kind: Any, text: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(help=text, rich_help_panel=_PANEL, **more)]


def _read_classes(text: str | None) -> list[str] | None:
    """Return class names that are separated by commas, or one per line of a file."""
    if text is None:
        return None
    names = Path(text).read_text("utf-8", "surrogateescape").splitlines() if os.path.isfile(text) else text.split(",")
    return [name.strip() for name in names if name.strip()]


_OPTIONS: dict[str, Any] = {
    "subset": _option(
        str | None,
        "Part of the samples: ':0.9', '10%:50%', ':1000', '::10', or a file of indices (.npy, .txt, .json).",
    ),
    "max_per_class": _option(int | None, "At most so many samples of each class.", min=1),
    "image": _option(str | None, "Column of a table with the images' paths; suffix of the images in tars."),
    "label": _option(
        list[str] | None,
        "Column of a table with the labels; where tars have them, such as cls or json:label. Several: once for each.",
    ),
    "root": _option(Path | None, "Folder to which the paths in a table are relative."),
    "requests": _option(int | None, "Data by URL: requests under way at a time, 64 by default.", min=1),
    "bytes_ahead": _option(
        int | None, "Data by URL: bytes to fetch before they are needed, 256 MiB by default.", min=1
    ),
    "local_cache": _option(Path | None, "Data by URL: folder of this machine that keeps what was fetched."),
    "local_bytes": _option(int | None, "Data by URL: bytes that this folder may take, about.", min=1),
    "classes": _option(str | None, "Class names by class number, separated by commas; or a file with one per line."),
    "missing_labels": _option(str | None, "Rows without a label: raise, the default, or leave_out."),
}


def takes_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; it receives those that were given as a dict, `data_options`."""
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    return with_more_options(command, "data_options", parameters, _keep_given)


def _keep_given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as open_source takes them."""
    labels = values["label"] or [None]
    label = labels if len(labels) > 1 else labels[0]
    read = {**values, "label": label, "classes": _read_classes(values["classes"])}
    return {name: str(value) if isinstance(value, Path) else value for name, value in read.items() if value is not None}
