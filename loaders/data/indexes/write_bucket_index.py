"""Writes an index next to the data in a bucket, or to a folder, without absolute addresses and without keys."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import numpy as np

from penstock.loaders.data.files.path_patterns import AnyPath
from penstock.loaders.data.indexes.bucket_index import (
    CHUNK,
    FOLDER,
    IMAGES,
    MANIFEST,
    TARS,
    IndexFile,
    Manifest,
    as_folder,
    in_words,
)
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.path_or_url import HTTP
from penstock.loaders.data.remote.url_patterns import is_url_folder, is_url_pattern, split_specs
from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import PackedNames
from penstock.loaders.system.durable_file import replace_file
from penstock.loaders.system.saved_columns import DIGEST_BYTES, Columns, narrowest
from penstock.pipelines.errors import LoaderError


def write_bucket_index(
    place: AnyPath,
    samples: Samples,
    labels: SavedColumns | None,
    *,
    spec: bytes,
    options: Mapping[str, Any],
) -> bytes:
    """Write the index of the data `spec` at URLs to a bucket or a folder; return the place. The manifest is last.

    spec: a path, pattern or table. options: of open_source.

    Raises LoaderError: E-MISUSE for addresses that contain keys, E-ACCESS, E-NOSPC; ValueError for local data.
    """
    folder, store = as_folder(place), ObjectStore(Access.among(options))
    if not samples.are_objects:
        raise ValueError("an index can only be kept in a bucket or a folder for data at URLs")
    unknown = samples.find_unknown()
    if unknown is not None:
        cause = "the server reports no versions of its objects, so an index would not show that they were replaced"
        raise LoaderError("E-MISUSE", cause, fix="index the data at each start", path=samples.container(unknown).name)
    kind = TARS if samples.has_ranges else FOLDER if is_url_folder(spec) else IMAGES
    has_spec = kind != IMAGES or (is_url(spec) and is_url_pattern(spec))  # others are compared by their names
    root, relative = split_specs([spec]) if has_spec else (samples.root, [])
    if not urlsplit(root).netloc:
        fix = "keep an index for each bucket or host"
        raise LoaderError("E-MISUSE", "the data is in several buckets or hosts", fix=fix, path=spec)
    own = samples.header
    named = {why: name.rpartition("/")[2] if "://" in name else name for why, name in own.examples.items()}
    header = replace(own, examples=named) if kind == TARS else replace(own, examples=named, made_by="", labels="")
    columns = {**samples.file.columns, "root": np.zeros(0, np.uint8)}
    if kind == TARS or samples.root.lower().startswith(HTTP):
        columns |= _relative_names(samples, root + b"/" if kind == TARS else b"")
    files = [_store(store, folder, "samples", partial(Samples.write, header=header, columns=columns))]
    if labels is not None and kind == TARS:  # others are read from the list or table
        of_labels = partial(SavedColumns.write, header=labels.header, columns=labels.file.columns)
        files.append(_store(store, folder, "labels", of_labels))
    about = Manifest(
        kind=kind,
        specs=[spec.decode("utf-8", "surrogateescape") for spec in relative],
        below="" if kind == TARS else samples.root[len(root) + 1 :].decode("utf-8", "surrogateescape"),
        made_by=header.made_by,
        options=in_words(options),
        samples=files[0],
        labels=files[1] if len(files) > 1 else None,
    )
    _put(store, folder + MANIFEST, io.BytesIO(json.dumps(asdict(about), indent=1).encode("ascii")))
    return folder


def _relative_names(samples: Samples, prefix: bytes) -> Columns:
    """Return the columns of the names of containers without `prefix`, and without queries, which may contain keys."""
    text, offsets = samples.file.columns["container_names"].data, samples.file.columns["container_offsets"]
    names = PackedNames()
    for first in range(0, samples.num_containers, CHUNK):
        ends = offsets[first : first + CHUNK + 1].tolist()
        some = [bytes(text[begin:end]) for begin, end in itertools.pairwise(ends)]
        if samples.has_ranges and not all(name.startswith(prefix) and b"?" not in name for name in some):
            cause = "an index cannot contain queries, such as signatures, or addresses outside the folder of the data"
            raise LoaderError("E-MISUSE", cause, fix="pass tars in one folder, with addresses that are not signed")
        names.extend([name[len(prefix) :].partition(b"?")[0] for name in some])
    columns = names.columns("container")
    return {**columns, "container_offsets": narrowest(columns["container_offsets"], np.uint32, np.uint64)}


def _store(store: ObjectStore, folder: bytes, kind: str, write: Callable[[BinaryIO], None]) -> IndexFile:
    """Write a file of an index, named after its digest: readers of an earlier index still find theirs."""
    with tempfile.TemporaryFile() as file:
        write(file)
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(num_bytes - DIGEST_BYTES)
        digest = file.read().hex()
        about = IndexFile(f"{kind}-{digest[:16]}.index", num_bytes, digest)
        file.seek(0)
        _put(store, folder + about.name.encode(), file)
    return about


def _put(store: ObjectStore, place: bytes, file: BinaryIO) -> None:
    if is_url(place):
        store.write(place.decode(), file)
        return
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        replace_file(place, lambda to: shutil.copyfileobj(file, to), private=False)
    except OSError as error:
        cause = f"the index cannot be written: {error.strerror or error}"
        raise LoaderError("E-ACCESS", cause, fix="choose another place", path=place) from error
