"""`penstock index`: builds the index of data in advance, so that a job starts without a scan."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import TextDataOptions
from penstock.bench.probe.data.training_folder import training_folder

_Out = Annotated[
    str | None,
    typer.Option(help="Data by URL: folder or URL to write the index to, such as s3://bucket/index/, for all nodes."),
]


@common.takes_settings(data_options=TextDataOptions)
def index(data: common.Data, data_options: dict[str, Any], out: _Out = None) -> None:
    """Rebuild the index of a folder, a table or tars, in the cache folder of this user (XDG_CACHE_HOME).

    A loader uses it while the data is unchanged. Arrow, Parquet and HDF5 files contain their own index. With --out, it
    is also written next to the data: loaders read it with index=, and ask the storage for nothing else.
    """
    from penstock.bench.record.clock import Stopwatch
    from penstock.loaders.front.open_source import open_source

    part = [name for name in ("subset", "max_per_class", "index") if name in data_options]
    if out is not None and part:
        raise ValueError(f"an index is made of the whole data: pass {', '.join(part)} when the data is read")
    watch = Stopwatch()
    place = training_folder(data)
    try:
        source = open_source(place, **data_options, rescan=True)
    except (TypeError, ValueError) as error:
        if "rescan" not in str(error):  # else it has no saved index: it is listed or looked up at each opening
            raise
        source = open_source(place, **data_options)
    if out is not None:
        _write(source, os.fsencode(place), out, data_options)
    typer.echo(f"{source.describe()}\nindexed in {watch.seconds:.1f} s{f', written to {out}' if out else ''}")


def _write(source: Any, place: bytes, out: str, options: dict[str, Any]) -> None:
    """Write the index of a source to a bucket or a folder. Raises ValueError for data without such an index."""
    from penstock.loaders.data.files.indexed_source import IndexedSource
    from penstock.loaders.data.indexes.write_bucket_index import write_bucket_index
    from penstock.loaders.data.labels.labelled import find_saved_labels
    from penstock.loaders.data.remote.pinned_urls import pin_url
    from penstock.loaders.data.sources.data import find_whole

    wholes = find_whole(source)
    if len(wholes) != 1 or not isinstance(wholes[0], IndexedSource):
        raise ValueError("only tars, folders, tables and lists of images at URLs have an index to write")
    write_bucket_index(out, wholes[0].samples, find_saved_labels(source), spec=pin_url(place), options=options)
