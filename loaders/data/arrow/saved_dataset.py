"""Opens a folder written by Hugging Face's `save_to_disk`."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from penstock.loaders.data.arrow.arrow_columns import AUTO, Label
from penstock.loaders.data.arrow.arrow_files import ArrowFiles, open_described
from penstock.loaders.data.labels.collect_texts import RAISE, TextOptions
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.path_or_url import absolute, is_file, read_whole
from penstock.loaders.data.remote.remote_source import check_reading
from penstock.loaders.data.remote.whole_files import copy_urls
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import shown

STATE, INFO, SPLITS = b"state.json", b"dataset_info.json", b"dataset_dict.json"
_INDICES = ("_indices_files", "_indices_data_files")  # in older versions, which did not write the rows in order


def is_saved_dataset(path: bytes, access: Access = DEFAULT) -> bool:
    """Return whether `path` is a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    there = [is_file(os.path.join(path, name), access) for name in (STATE, INFO, SPLITS)]
    return (there[0] and there[1]) or there[2]


def open_saved_dataset(
    path: bytes,
    *,
    split: str | None = None,
    image: str | None = None,
    label: Label = AUTO,
    classes: object = None,
    missing_labels: str = RAISE,
    text: str | None = None,
    missing_text: str = RAISE,
    **reading: Any,
) -> Source:
    """Open such a folder; samples are numbered like the rows of `datasets.load_from_disk`.

    Files below a URL are copied whole to `local_cache`. split: the split, if the folder has several. image, label,
    classes, missing_labels, text, missing_text: as in open_arrow_files. Raises ValueError for splits and columns,
    LoaderError.
    """
    path, texts = absolute(path), TextOptions.checked(text, missing_text)
    chosen: dict[str, Any] = {"image": image, "label": label, "classes": classes, "missing_labels": missing_labels}
    options: dict[str, Any] = {**chosen, "text": text, "missing_text": missing_text, **reading}
    reopen = functools.partial(open_saved_dataset, path, split=split, **options)
    access = Access.among(reading)
    folder = _find_split(path, split, access)
    state, info = _read_object(os.path.join(folder, STATE), access), read_whole(os.path.join(folder, INFO), access)
    if split is not None and folder == path and state.get("_split") != split:
        raise ValueError(f"split must be the saved split, {state.get('_split')!r}, got {split!r}")
    indices: list[Any] = next((state[name] for name in _INDICES if state.get(name)), [])
    paths, indices = _names(state.get("_data_files"), folder), _names(indices, folder)
    if not paths:
        raise LoaderError("E-NODATA", "the saved data set has no files", path=folder)
    reads = check_reading(paths, **reading)
    here = copy_urls([*paths, *indices], reads)
    where: dict[str, Any] = {"paths": tuple(here[: len(paths)]), "indices": tuple(here[len(paths) :])}
    files = ArrowFiles(**where, **chosen, info=info, text=texts)
    return open_described(files, reopen, reads.max_file_bytes)


def _find_split(path: bytes, split: str | None, access: Access) -> bytes:
    if not is_file(os.path.join(path, SPLITS), access):
        return path
    listed = _read_object(os.path.join(path, SPLITS), access).get("splits")
    splits = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if split not in splits:
        raise ValueError(f"split must be one of {', '.join(splits)} of {printable(path)}, got {shown(split)}")
    return os.path.join(path, _checked_name(split, path))


def _names(files: Any, folder: bytes) -> list[bytes]:
    """Return the paths of files listed in state.json: [{"filename": ...}]."""
    names = [file.get("filename") if isinstance(file, dict) else None for file in files or []]
    return [os.path.join(folder, _checked_name(name, folder)) for name in names]


def _checked_name(name: object, folder: bytes) -> bytes:
    """Return the name of a file in `folder`. Raises LoaderError for a name with folders."""
    if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
        raise LoaderError("E-CORRUPT", f"its files must be named without folders, got {shown(name)}", path=folder)
    return os.fsencode(name)


def _read_object(path: bytes, access: Access) -> dict[str, Any]:
    try:
        found = json.loads(read_whole(path, access))
    except (ValueError, RecursionError) as error:
        raise LoaderError("E-CORRUPT", f"not JSON: {error}", fix="save the data set again", path=path) from error
    if not isinstance(found, dict):
        raise LoaderError("E-CORRUPT", "not a JSON object", fix="save the data set again", path=path)
    return found
