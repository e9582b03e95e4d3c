"""Texts in files beside images: photos/0.txt for photos/0.jpg."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from penstock.loaders.data.fields.join import refuse_repeated
from penstock.loaders.data.files.left_out import NO_TEXT, warn_of_left_out
from penstock.loaders.data.labels.collect_texts import LEAVE_OUT, TextCollector, TextOptions
from penstock.loaders.data.labels.labelled import serve_labels
from penstock.loaders.data.labels.row_errors import Fail
from penstock.loaders.data.labels.stored_labels import keep_labels
from penstock.loaders.data.labels.text_places import WHOLE_JSON, encode_texts, parse_json, parse_place, read_texts
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import as_data
from penstock.loaders.system.file_read import read_error
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.pipelines.errors import LoaderError, count_text, printable

_SHOW_INTERVAL = 1 << 10
_SHOWN = 4  # files in an error
_CURE = "give each image a separate name, or pass a table with a column of texts"


def add_texts_beside(source: Source, options: TextOptions) -> Source:
    """Return `source` with the field `text`: the texts in the files beside its images, read now.

    options: their suffix, or the field of a .json file. Raises ValueError for two images with one text, LoaderError
    for a file that cannot be read, a text that is not UTF-8, and an image without a text unless such are left out.
    """
    suffix, field = parse_place(options.place)
    paths = [source.path(index) for index in range(len(source))]
    if not os.path.isabs(paths[0]):
        raise ValueError("text= reads files beside images on disk: put the texts of URLs into a table or into tars")
    stems = [os.path.splitext(path)[0] for path in paths]
    separate = dict(zip(paths, map(os.fsdecode, stems), strict=True))  # a list may repeat an image
    named = list(separate)
    refuse_repeated(separate.values(), lambda number: printable(named[number]), "images", _CURE, "name")

    def fail(row: int, cause: str, fix: str | None = None) -> LoaderError:
        return LoaderError("E-FORMAT", cause, fix=fix, path=paths[row])

    texts = TextCollector()
    with ProgressBar("indexing", show_after_s=SHOW_AFTER_S) as bar:
        for row, stem in enumerate(stems):
            texts.add(_read_beside(stem, suffix, field, row, fail), fail, row)
            if row % _SHOW_INTERVAL == 0:
                bar.show(row, len(stems), f"reading the texts of {len(stems):,} images")
    missing = texts.find_missing()
    if missing.all():
        _refuse_absent(paths, stems, suffix, fail)
    if missing.any() and (missing.all() or options.missing != LEAVE_OUT):
        raise texts.missing_error()
    kept = np.flatnonzero(~missing)
    if missing.any():
        first = paths[int(np.argmax(missing))]
        warn_of_left_out({NO_TEXT: int(missing.sum())}, {NO_TEXT: first}, printable(os.path.commonpath(paths)))
        source = as_data(source).take(kept)
    return serve_labels(source, keep_labels(texts.finish(~missing)))


def _refuse_absent(paths: Sequence[bytes], stems: Sequence[bytes], suffix: bytes, fail: Fail) -> None:
    """Raise the error for images without any file of this suffix beside them; return if there is one."""
    if any(os.path.exists(stem + b"." + suffix) for stem in stems):
        return
    folder, stem = os.path.split(stems[0])
    image, wanted = os.path.basename(paths[0]), printable(stem + b"." + suffix)
    beside = [name for name in sorted(os.listdir(folder)) if name.startswith(stem + b".") and name != image]
    others = f"only {', '.join(map(printable, beside[:_SHOWN]))}" if beside else "and no other file of its name"
    cause = f"no file {wanted} beside the image, {others}; none of {count_text(len(paths), 'image')} has one"
    raise fail(0, cause, "pass text= with the suffix of the files of texts, such as 'txt', or 'json:FIELD'")


def _read_beside(stem: bytes, suffix: bytes, field: str, row: int, fail: Fail) -> object:
    """Return the text in a file, or its list of texts; None without a file."""
    path = stem + b"." + suffix
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_error(error, path) from error
    try:
        what = printable(os.path.basename(path))
        return read_texts(encode_texts(parse_json(content) if suffix == b"json" else content, field, what))
    except ValueError as error:
        if str(error).startswith(WHOLE_JSON):
            raise
        raise fail(row, str(error), "repair the file") from None
