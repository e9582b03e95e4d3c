"""Writes packed rows of image paths and labels as an index of samples."""

from __future__ import annotations

import glob
import os
from array import array
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.left_out import NO_ROW_LABEL, NO_ROW_TEXT
from penstock.loaders.data.labels.conflicts import find_conflicts, hash_paths
from penstock.loaders.data.labels.stored_labels import Labels, has_labels, split_classes
from penstock.loaders.data.remote.object_stats import LookUp, stat_places
from penstock.loaders.data.remote.object_store import is_url
from penstock.loaders.data.remote.path_or_url import HTTP
from penstock.loaders.data.samples.samples import as_prefix
from penstock.loaders.data.samples.samples_writer import LIST_RULES, SamplesWriter
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.data.tables.row_packer import RowPacker
from penstock.loaders.system.progress_bar import ProgressBar
from penstock.pipelines.errors import LoaderError, printable

_ENTRY_BYTES = 12  # size of an entry in the index's folder table, without its name


def index_list(
    packer: RowPacker, bar: ProgressBar | None = None, look_up: LookUp = stat_places
) -> tuple[SamplesWriter, Labels]:
    """Look up the files of packed rows; return the index to save, and labels that are not class numbers.

    The index keeps the order of the rows. Its root is the deepest folder that contains all files, so a copy has the
    same fingerprint.

    Args:
        packer: the rows.
        bar: shows how many files have been looked up.
        look_up: returns sizes and versions of files, as stat_places does.

    Raises LoaderError: E-NODATA without any row or file, E-FORMAT for inconsistent labels.
    """
    if not len(packer):
        raise LoaderError("E-NODATA", "no rows", fix="pass at least one image")
    labels = packer.labels.finish()
    if labels and len(packer.labels) != len(packer):
        cause = f"{len(packer.labels):,} of {len(packer):,} rows have labels: some tables lack the column"
        raise LoaderError("E-FORMAT", cause, fix="name the column of labels with label=")
    left_out, num_rows = packer.labels.left_out, len(packer)
    if left_out.any():
        packer.leave_out(left_out)
    numbers, classes, others = split_classes(labels, len(packer))
    root = _find_root(min(packer.folders), max(packer.folders))
    prefix = as_prefix(root)
    folders = [folder[len(prefix) :] for folder in packer.folders]
    writer = SamplesWriter(root=root, rules=LIST_RULES)
    writer.classes, writer.flat = list(classes), not has_labels(labels)
    no_text = int(packer.labels.lacks_text.sum())
    lost = {NO_ROW_LABEL: num_rows - len(packer) - no_text, NO_ROW_TEXT: no_text}
    writer.left_out.counts += Counter(lost)  # keeps only positive counts
    kept = _arrange_entries(writer, packer, folders, numbers)
    names = _name_files(writer, packer, folders, kept, has_keys=prefix.lower().startswith(HTTP))
    hashes = array("q")
    table, total, what = writer.containers, len(packer), f"looking up {len(packer):,} files"

    def show(done: int) -> None:
        if bar is not None:
            bar.show(done, total, what)

    table.sizes, table.versions, writer.ctimes = look_up(prefix, hash_paths(names, hashes), show)
    if (np.asarray(table.versions) == MISSING.number).all():
        raise _none_error(prefix + folders[packer.folder_of[0]] + packer.names[0], len(packer))

    def path_of(row: int) -> bytes:
        return folders[packer.folder_of[row]] + packer.names[row]

    writer.conflicts = find_conflicts(hashes, labels, path_of)
    return writer, others


def _arrange_entries(
    writer: SamplesWriter, packer: RowPacker, folders: list[bytes], labels: npt.NDArray[np.int32]
) -> list[bytes]:
    """Fill the folder table and each row's entry in it; return the prefix cut from the names of each folder.

    An entry is a folder with a label, so rows do not need a label column. If a folder needs so many entries that they
    take more space than they save, its rows keep the folder in their names, and share one entry of the root per label.
    """
    num_folders, num_classes = len(folders), len(writer.classes)
    folder_of = np.frombuffer(packer.folder_of, np.uint32).astype(np.int64)
    lengths = np.array([len(folder) for folder in folders], np.int64)
    num_files = np.bincount(folder_of, minlength=num_folders)
    pairs = np.unique(folder_of * num_classes + labels)
    num_entries = np.bincount(pairs // num_classes, minlength=num_folders)
    carries = num_entries * (_ENTRY_BYTES + lengths) > num_files * lengths
    folder_of[carries[folder_of]] = num_folders
    entries, entry_of = np.unique(folder_of * num_classes + labels, return_inverse=True)
    writer.containers.folders = array("I", entry_of.astype(np.uint32).tobytes())
    names = [*(folder[:-1] for folder in folders), b""]
    for entry in entries.tolist():
        writer.add_folder(names[entry // num_classes], entry % num_classes)
    return [b"" if carried else folder for folder, carried in zip(folders, carries, strict=True)]


def _name_files(
    writer: SamplesWriter, packer: RowPacker, folders: list[bytes], kept: list[bytes], *, has_keys: bool
) -> Iterator[list[bytes]]:
    """Yield the paths of the rows relative to the root, in chunks; digest them and store their names.

    has_keys: whether paths have queries, which may change while the image does not.
    """
    for numbers, names in packer.chunks():
        paths = [folders[folder] + name for folder, name in zip(numbers, names, strict=True)]
        named = [path.partition(b"?")[0] for path in paths] if has_keys else paths
        writer.paths.update(b"\0".join(named) + b"\0")
        writer.containers.names.extend([path[len(kept[folder]) :] for folder, path in zip(numbers, paths, strict=True)])
        yield paths


def _find_root(first: bytes, last: bytes) -> bytes:
    """Return the deepest folder that contains all folders, given the first and the last of them in sorted order."""
    if not is_url(first):
        return os.path.commonpath([first, last])
    protocol = first[: first.index(b"://") + 3]
    return protocol + os.path.commonpath([folder[len(protocol) - 1 :] for folder in (first, last)])[1:]


def _none_error(first: bytes, count: int) -> LoaderError:
    """Return the error for rows if none of their files exists; `first` is the path of the first."""
    found = [] if is_url(first) else sorted(glob.glob(glob.escape(first) + b".*"))
    fix = "check the paths; root= is the folder of relative paths"
    if found:
        fix = f"add the suffix to all paths: {printable(os.path.basename(found[0]))} exists"
    cause = f"none of the {count:,} files exists, the first is {printable(first)}"
    return LoaderError("E-NODATA", cause, fix=fix)
