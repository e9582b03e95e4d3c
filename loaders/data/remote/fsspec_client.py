"""Reads ranges of objects by fsspec, for the protocols that obstore does not know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.loaders.data.remote.remote_object import Listed, Named, Part, RemoteObject
from penstock.loaders.data.requests.time_limits import PAGE_BYTES, total_s
from penstock.loaders.data.samples.version import Version
from penstock.pipelines.errors import LoaderError

_TIMES = ("mtime", "LastModified", "last_modified", "modified", "modificationTime", "created")


def has_fsspec() -> bool:
    """Return whether fsspec, which opens other protocols, can be imported."""
    try:
        import fsspec  # noqa: F401
    except ImportError:
        return False
    return True


class FsspecClient:
    """A client of one protocol, through fsspec."""

    def __init__(self, scheme: str, host: str) -> None:
        try:
            import fsspec
        except ImportError:
            fix = "pip install fsspec"
            raise LoaderError("E-DEPENDENCY", f"{scheme}:// needs the package fsspec", fix=fix) from None
        fix = "check the scheme of the URL; if it is right, pip install the package that adds it to fsspec"
        try:
            self._files = fsspec.filesystem(scheme)
        except TypeError as error:  # ftp, sftp, webhdfs and others
            cause = f"{scheme}:// needs settings that a URL cannot contain ({error})"
            fix = "mount the storage as a folder, or serve it over HTTP or S3"
            raise LoaderError("E-UNSUPPORTED", cause, fix=fix) from None
        except (ImportError, ValueError) as error:
            raise LoaderError("E-DEPENDENCY", f"fsspec cannot open {scheme}://: {error}", fix=fix) from None

    def stat(self, url: str, stall_s: float) -> RemoteObject:
        return self._describe(self._files.info(url, **self._limit(stall_s)))

    @staticmethod
    def _describe(about: dict[str, Any]) -> RemoteObject:
        etag = next((about[name] for name in ("etag", "ETag", "sha256", "blob_id") if about.get(name)), None)
        modified = next((about[name] for name in _TIMES if about.get(name)), "")
        return RemoteObject(
            about["size"], Version.of_object(None if etag is None else str(etag), modified, about["size"])
        )

    def read(self, url: str, start: int, size: int, stall_s: float) -> Part:
        from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

        if self._files.async_impl or type(self._files).cat_file is not AbstractFileSystem.cat_file:
            data = self._files.cat_file(url, start=start, end=start + size, **self._limit(total_s(stall_s, size)))
        else:
            with self._files.open(url, "rb") as file:
                if isinstance(file, AbstractBufferedFile):  # such as hf://: its read() also fetches the next 5 MiB
                    end = min(start + size, file.size)
                    data = file._fetch_range(start, end) if start < end else b""
                else:
                    file.seek(start)
                    data = file.read(size)
        return Part(data, self.stat(url, stall_s))

    @staticmethod
    def plain_request(url: str) -> None:
        """Return None: the protocol is not HTTP."""

    def list_pages(self, url: str, stall_s: float, after: str, *, is_repeated: bool) -> Iterator[list[Named]]:
        """Yield all objects in the folder of the name in `url` at once."""
        folder = url.rpartition("/")[0]
        base = self._files._strip_protocol(folder).rstrip("/")
        found = self._files.find(folder, detail=True, **self._limit(total_s(stall_s, PAGE_BYTES))).items()
        yield [(folder + path[len(base) :], self._describe(about)) for path, about in found]

    @staticmethod
    def choose_named(url: str, listed: Sequence[Named]) -> list[Named]:
        """Return the objects in a listing with names that begin with `url`."""
        return [each for each in listed if each[0].startswith(url)]

    def list_folder(self, url: str, stall_s: float, *, is_repeated: bool) -> Listed:
        folder = url.rstrip("/")
        base = self._files._strip_protocol(folder).rstrip("/")
        found = [
            (folder + about["name"].rstrip("/")[len(base) :], about)
            for about in self._files.ls(folder, detail=True, **self._limit(total_s(stall_s, PAGE_BYTES)))
        ]
        objects = [(name, self._describe(about)) for name, about in found if about["type"] == "file"]
        return [f"{name}/" for name, about in found if about["type"] == "directory"], objects

    def _limit(self, limit_s: float) -> dict[str, float]:
        """Return the timeout argument of a call, if the protocol accepts one."""
        return {"timeout": limit_s} if self._files.async_impl else {}
