"""Makes the index of tars: scans them, and gives every sample its labels."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from os.path import basename, splitext
from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.labels.label_columns import LabelRows
from penstock.loaders.labels.label_values import Labels, digest_labels, split_classes
from penstock.loaders.sources.folder_scan import BESIDE_CLASSES, FLAT_CLASS, skipped_text
from penstock.loaders.sources.range_index import RangeTable
from penstock.loaders.system.progress_bar import ProgressBar
from penstock.loaders.tars.tar_labels import (
    FOLDER,
    SHARD,
    LabelMember,
    NamedMembers,
    Table,
    folder_labels,
    label_members,
    table_labels,
)
from penstock.loaders.tars.tar_scan import TarSamples, TarScan
from penstock.pipelines.errors import LoaderError, hide_secrets, printable

KIND = "tar files"
_RULES = b"penstock tars 2"  # the version of the rules by which samples are grouped, ordered and labelled
SHOW_SCAN_AFTER_S = 1.0
_FIX_LABEL = "pass label='cls', 'json:FIELD', 'folder', 'shard', or a table of keys and labels"
_FIX_TABLE = "add its key to the table: the name up to the first dot of its last part"


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Hold what decides the content of an index, apart from the tars.

    Attributes:
        image: suffixes of the images, in small letters; none for automatic.
        label: the option `label`.
        table: key -> label, if `label` is or names a table.
        classes: class names, or those of each label; None for automatic.
    """

    image: tuple[bytes, ...]
    label: Any
    table: Table | None
    classes: Any

    def digest(self, paths: Iterable[bytes] = ()) -> str:
        """Return a hex digest of the settings and of `paths`."""
        digest = hashlib.blake2b(_RULES, digest_size=16)
        label = self.label if self.table is None else "table"
        digest.update(repr((self.image, label, self.classes)).encode("utf-8", "surrogateescape"))
        for part in chain(paths, *sorted((self.table or {}).items())):
            digest.update(b"%d " % len(part) + part)
        return digest.hexdigest()


def make_table(paths: Sequence[bytes], settings: IndexSettings) -> tuple[RangeTable, Labels]:
    """Return the samples of the tars, in the order of these and of their members, and labels that are no class numbers.

    Raises LoaderError.
    """
    tars = _scan(paths, settings)
    skipped = sum((tar.skipped for tar in tars), Counter[str]())
    names = list(chain.from_iterable(tar.names for tar in tars))
    container_of = np.repeat(np.arange(len(tars)), [len(tar.names) for tar in tars])
    if not names:
        fix = "pass tars that contain JPEG, PNG, WebP, BMP or GIF files"
        if settings.image:
            fix = "check image=: no member has this suffix"
        raise LoaderError("E-NODATA", f"no sample in {_describe(paths)}{skipped_text(+skipped)}", fix=fix)

    def place(index: int) -> bytes:
        return paths[int(container_of[index])] + b":" + names[index]

    def fail(sample: int, cause: str, fix: str | None = None) -> LoaderError:
        return LoaderError("E-FORMAT", cause, fix=fix, path=place(sample))

    labels = _find_labels(paths, tars, names, settings)
    if None in labels.texts:
        number = labels.texts.index(None)
        if settings.table is not None:
            raise LoaderError("E-MISUSE", "the table of labels lacks this sample", fix=_FIX_TABLE, path=place(number))
        skipped[BESIDE_CLASSES] += labels.texts.count(None)
    kept = np.array([text is not None for text in labels.texts])
    starts = np.concatenate([np.asarray(tar.starts, np.int64) for tar in tars])
    sizes = np.concatenate([np.asarray(tar.sizes, np.int64) for tar in tars])
    names, container_of = list(compress(names, kept.tolist())), container_of[kept]
    texts = [text for text in labels.texts if text is not None]
    rows = LabelRows(settings.classes or labels.classes, untyped=not labels.are_names)
    are_several = isinstance(tars[0].label_member, NamedMembers)
    for number, text in enumerate(texts):
        rows.add(json.loads(text) if are_several else os.fsdecode(text), fail, number)
    numbers, classes, others = split_classes(rows.finish(), len(texts))
    table = RangeTable(
        kind=KIND,
        containers=[tar.container for tar in tars],
        container_of=container_of,
        starts=starts[kept],
        sizes=sizes[kept],
        labels=numbers.astype(np.int64),
        keys=names,
        classes=classes,
        made_by=settings.digest(),
        skipped=dict(+skipped),
        labels_digest=digest_labels(others) if others else "",
    )
    return table, others


class _Labels(NamedTuple):
    """Hold the labels of all samples as text; None for one that has none.

    Attributes:
        texts: the labels.
        are_names: whether numbers among them are names too.
        classes: class names, if these are known.
    """

    texts: Sequence[bytes | None]
    are_names: bool = False
    classes: tuple[bytes, ...] | None = None


def _find_labels(
    paths: Sequence[bytes], tars: Sequence[TarSamples], names: Sequence[bytes], settings: IndexSettings
) -> _Labels:
    if settings.table is not None:
        return _Labels(table_labels(settings.table, names))
    if settings.label == SHARD:
        shards = [splitext(basename(hide_secrets(path)))[0] for path in paths]
        return _Labels([shard for shard, tar in zip(shards, tars, strict=True) for _ in tar.names], are_names=True)
    firsts: dict[LabelMember | NamedMembers | None, TarSamples] = {}
    for tar in tars:
        if tar.names:
            firsts.setdefault(tar.label_member, tar)
    if len(firsts) > 1:
        (one, first), (other, second), *_ = firsts.items()
        where = [
            f"{'folder' if m is None else m.describe()} in {printable(basename(hide_secrets(t.container.name)))}"
            for m, t in ((one, first), (other, second))
        ]
        raise LoaderError("E-FORMAT", f"labels stand in different places: {' and '.join(where)}", fix=_FIX_LABEL)
    if None not in firsts:
        return _Labels(list(chain.from_iterable(tar.labels for tar in tars)))
    folders = folder_labels(names)
    if folders is not None:
        return _Labels(folders, are_names=True)
    if settings.label == FOLDER:
        raise LoaderError("E-FORMAT", "no member lies in a folder", fix=_FIX_LABEL, path=paths[0])
    return _Labels([b"0"] * len(names), classes=(FLAT_CLASS,))


def _scan(paths: Sequence[bytes], settings: IndexSettings) -> list[TarSamples]:
    with ProgressBar("indexing", show_after_s=SHOW_SCAN_AFTER_S) as bar:

        def show(done: int, total: int) -> None:
            bar.show(done, total, what=f"indexing {_describe(paths)}")

        return list(TarScan(paths, settings.image, label_members(settings.label), show))


def _describe(paths: Sequence[bytes]) -> str:
    return f"{len(paths):,} {KIND}" if len(paths) > 1 else printable(paths[0])
