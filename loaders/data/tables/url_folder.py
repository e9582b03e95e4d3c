"""Serves a folder of images in object storage: its listing is the scan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from penstock.loaders.data.files.folder_scan import (
    FLAT_CLASS,
    empty_classes_error,
    is_walked,
    refuse_strays,
    skipped_text,
)
from penstock.loaders.data.files.indexed_source import MAX_FILE_BYTES, IndexedSource
from penstock.loaders.data.files.left_out import (
    BESIDE_CLASSES,
    HIDDEN,
    UNREAD_FORMAT,
    LeftOut,
    explain_name,
    is_image_name,
    warn_of_left_out,
    warn_of_parts,
)
from penstock.loaders.data.files.reopen_source import Reopening
from penstock.loaders.data.remote.object_stats import REMOTE_THREADS
from penstock.loaders.data.remote.object_store import ObjectStore, RemoteObject
from penstock.loaders.data.remote.remote_source import check_remote
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import FOLDER_RULES, ContainerTable, SamplesWriter
from penstock.loaders.data.tables.open_tables import serve_list
from penstock.loaders.system.saved_columns import save_in_memory
from penstock.pipelines.errors import LoaderError, printable


def open_url_folder(url: bytes, *, max_file_bytes: int = MAX_FILE_BYTES, **remote_options: Any) -> IndexedSource:
    """Open the class folders, or the images, below a URL; the storage must be able to list them.

    remote_options: REMOTE_OPTIONS, as RemoteOptions holds them. Raises LoaderError E-NODATA, E-EMPTYCLASS.
    """
    remote = check_remote([url], max_file_bytes, **remote_options)
    reopen = Reopening(lambda rescan: open_url_folder(url, max_file_bytes=max_file_bytes, **remote_options))
    root = url.rstrip(b"/")
    samples = save_in_memory(UrlFolderScan(root).write, Samples)
    warn_of_left_out(samples.header.skipped, samples.header.examples, printable(root))
    warn_of_parts(samples.classes, printable(root))
    if not samples.header.flat:
        _refuse_empty_classes(samples)
    return serve_list(samples, remote, max_file_bytes, reopen, root)


class UrlFolderScan:
    """List the images below a URL by the rules of FolderScan; the listings of class folders run side by side."""

    def __init__(self, root: bytes) -> None:
        self._root, self._prefix = root, root.decode() + "/"
        self._writer, self._left_out = SamplesWriter(), LeftOut()
        store = ObjectStore()
        folders, objects = store.list_folder(self._prefix)
        names = [folder[len(self._prefix) : -1] for folder in folders]
        classes = sorted(filter(is_walked, names))
        for name in set(names) - set(classes):
            self._left_out.add(HIDDEN, name.encode())
        top = self._take(objects)
        beside, self._left_out = self._left_out, LeftOut()
        with ThreadPoolExecutor(REMOTE_THREADS) as pool:
            listings = pool.map(store.list, [f"{self._prefix}{name}/" for name in classes])
            for name, listed in zip(classes, listings, strict=True):
                self._writer.add_class(name.encode())
                self._writer.add_files(self._take(listed))
        self._flat = len(self._writer.containers) == 0 and len(top) > 0
        if self._flat:
            if self._writer.classes:
                refuse_strays(root, len(top), self._left_out)
            self._writer.classes = [FLAT_CLASS]
            self._writer.add_files(top)
        elif len(top):
            self._left_out.add(BESIDE_CLASSES, min(map(top.names.__getitem__, range(len(top)))), len(top))
        for reason, count in beside.counts.items():
            is_beside = reason == UNREAD_FORMAT and len(self._writer.containers) and not self._flat
            self._left_out.add(BESIDE_CLASSES if is_beside else reason, beside.examples[reason], count)
        if len(self._writer.containers) == 0:
            cause = f"no images in this folder{skipped_text(self._left_out.counts)}"
            raise LoaderError("E-NODATA", cause, path=root)

    def write(self, file: BinaryIO) -> None:
        """Write what was found as an index. Raises OSError."""
        skipped, examples = dict(self._left_out.counts), self._left_out.texts()
        about = {"flat": self._flat, "skipped": skipped, "examples": examples}
        self._writer.write(file, root=self._root, rules=FOLDER_RULES, **about)

    def _take(self, objects: dict[str, RemoteObject]) -> ContainerTable:
        """Return the images among `objects`, which are of the latest class."""
        images, numbers = ContainerTable(), dict[str, int]()
        label = max(0, len(self._writer.classes) - 1)
        for url, found in objects.items():
            path = url[len(self._prefix) :]
            name = path[path.rfind("/") + 1 :]
            if not all(map(is_walked, path.split("/"))):
                self._left_out.add(HIDDEN, path.encode())
            elif not is_image_name(name):
                self._left_out.add(explain_name(name), path.encode())
            else:
                below = path.rpartition("/")[0]
                if below not in numbers:
                    numbers[below] = self._writer.add_folder(below.encode(), label)
                images.add(path.encode(), numbers[below], found.size, found.version.number)
        return images


def _refuse_empty_classes(samples: Samples) -> None:
    empty = [name for name, count in zip(samples.classes, samples.class_counts, strict=True) if not count]
    if empty:
        fix = "remove the class folder that holds no image"
        raise empty_classes_error(samples.prefix() + empty[0], len(empty), fix)
