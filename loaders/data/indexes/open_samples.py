"""Opens saved indexes of samples, and sources of samples in files or at URLs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.indexes.bucket_index import BucketIndex
from penstock.loaders.data.labels.stored_labels import Labels, next_to, save_with_labels
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_stats import is_current
from penstock.loaders.data.remote.remote_source import RemoteOptions, RemoteSource
from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.data.samples.once_per_node import once_per_node
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.system.saved_columns import load_saved

_LOGIN = re.compile(rb"https?://[^/?#]*@", re.IGNORECASE)


def load_or_make(
    name: bytes | None,
    made_by: str,
    make: Callable[[], tuple[SamplesWriter, Labels]],
    access: Access = DEFAULT,
    *,
    rescan: bool = False,
    looks: bool = True,
) -> tuple[Samples, SavedColumns | None]:
    """Return the saved index `name`, and its labels that are not class numbers; if outdated, make and save it again.

    Without a `name`, and for URLs with a password, the index is made in memory. made_by: identity of the settings that
    decide its content. looks: whether to look whether the data has changed.

    With many containers, only a sample is compared: each is compared again when it is read. One rank of a node does all
    this, the others wait and read what it saved.
    """
    with once_per_node(name, "indexing the data") as is_done:
        samples = None if name is None or (rescan and not is_done) else load_saved(name, Samples, verify=not is_done)
        is_trusted = is_done or not looks or (samples is not None and is_current(samples, access, every=False))
        if name and samples and samples.header.made_by == made_by and is_trusted:
            digest = samples.header.labels
            labels = load_saved(next_to(name), SavedColumns, verify=not is_done) if digest else None
            if not digest or (labels is not None and labels.identity == digest):
                return samples, labels
        writer, others = make()
        writer.made_by = made_by
        if any(_LOGIN.search(text) for text in (writer.root, writer.folders.text, writer.containers.names.text)):
            name = None
        return save_with_labels(name, writer, others)


def serve_samples(
    samples: Samples,
    options: RemoteOptions,
    reopen: Callable[..., IndexedSource] | None = None,
    index: BucketIndex | None = None,
    **about: Any,
) -> IndexedSource:
    """Return a source of samples in files or at URLs, perhaps from a bucket's index; `about` as in IndexedSource."""
    if index is not None:
        about |= {"root": samples.root or index.root, "index_place": index.place}
    if samples.are_objects:
        return RemoteSource(samples, options, reopen, **about)
    return IndexedSource(samples, options.max_file_bytes, reopen, **about)
