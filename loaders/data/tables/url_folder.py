"""Opens a folder of images in object storage; its listing serves as the scan."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.loaders.data.files.folder_scan import ClassFolders, Subfolder, is_walked, refuse_empty_classes
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.files.left_out import HIDDEN, explain_name, is_image_name, warn_of_left_out, warn_of_parts
from penstock.loaders.data.indexes.bucket_index import FOLDER, BucketIndex
from penstock.loaders.data.indexes.open_samples import load_or_make
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_stats import REMOTE_THREADS
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.data.remote.remote_source import check_reading
from penstock.loaders.data.samples.once_per_node import is_one_of_several
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import ContainerTable
from penstock.loaders.data.tables.open_tables import serve_list
from penstock.pipelines.errors import printable


def open_url_folder(url: bytes, *, index: BucketIndex | None = None, **reading: Any) -> IndexedSource:
    """Open the class folders or the images below a URL; the storage must support listing, unless there is an index.

    index: an index from a bucket. reading: fields of RemoteOptions. Raises LoaderError E-NODATA, E-EMPTYCLASS.
    """
    options = check_reading([url], **reading)
    root = url.rstrip(b"/")
    if index is None:
        samples = _scan(root, options)
    else:
        index.check_kind(FOLDER)
        samples = index.samples.at(root)
    warn_of_left_out(samples.header.skipped, samples.header.examples, printable(root))
    warn_of_parts(samples.classes, printable(root))
    refuse_empty_classes(samples, fix="remove the class folder without images")

    def reopen(rescan: bool) -> IndexedSource:
        return open_url_folder(url, index=index, **reading)

    return serve_list(samples, options, reopen, root, index=index)


def _scan(root: bytes, access: Access) -> Samples:
    """Return the index of the images below a URL; one rank of a node lists them, the others read what it saved."""
    digest = hashlib.blake2b(b"penstock url folder" + root, digest_size=16).hexdigest().encode()
    name = digest + b".index" if is_one_of_several() else None
    return load_or_make(name, "", lambda: (UrlFolderScan(root, access).writer, {}), rescan=True)[0]


class UrlFolderScan(ClassFolders):
    """A scan of the images below a URL; class folders are listed in parallel."""

    def __init__(self, root: bytes, access: Access) -> None:
        self._prefix, self._store = root.decode() + "/", ObjectStore(access)
        super().__init__(root, root)

    def _list_root(self, images: ContainerTable) -> list[Subfolder]:
        folders, objects = self._store.list_folder(self._prefix)
        self._take(objects, images)
        names = [folder[len(self._prefix) : -1] for folder in folders]
        for name in names:
            if not is_walked(name):
                self.writer.left_out.add(HIDDEN, name.encode())
        return [(name.encode(), False) for name in sorted(filter(is_walked, names))]

    def _add_classes(self, folders: list[Subfolder]) -> None:
        with ThreadPoolExecutor(REMOTE_THREADS) as pool:
            listings = pool.map(self._store.list, [f"{self._prefix}{name.decode()}/" for name, _ in folders])
            for (name, _), listed in zip(folders, listings, strict=True):
                images = ContainerTable()
                self.writer.classes.append(name)
                self._take(listed, images)
                self.writer.add_files(images)

    def _take(self, objects: dict[str, RemoteObject], images: ContainerTable) -> None:
        """Add the images among `objects` to `images`; they belong to the latest class."""
        numbers, label = dict[str, int](), max(0, len(self.writer.classes) - 1)
        for url, found in objects.items():
            path = url[len(self._prefix) :]
            name = path[path.rfind("/") + 1 :]
            if not all(map(is_walked, path.split("/"))):
                self.writer.left_out.add(HIDDEN, path.encode())
            elif not is_image_name(name):
                self.writer.left_out.add(explain_name(name), path.encode())
            else:
                below = path.rpartition("/")[0]
                if below not in numbers:
                    numbers[below] = self.writer.add_folder(below.encode(), label)
                images.add(path.encode(), numbers[below], found.size, found.version.number)
