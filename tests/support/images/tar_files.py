"""Tar files for tests: written by tarfile or GNU tar, or block by block."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.loaders import open_source
from penstock.pipelines.errors import LoaderError

BLOCK = 512
END = bytes(2 * BLOCK)


def write_tar(path: Path, files: Iterable[tuple[str | bytes, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar of `files` (name, content) in a format of tarfile; return `path`."""
    with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def pack_folder(path: Path, folder: Path, names: Iterable[str]) -> Path:
    """Write a tar of the files `names` (relative paths) of a folder; return `path`."""
    return write_tar(path, [(name, (folder / name).read_bytes()) for name in names])


def gnu_tar(path: Path, folder: Path, *options: str) -> Path:
    """Write a tar of a folder's entries by GNU tar, sorted by name; return `path`."""
    command = ["tar", "--sort=name", "-cf", str(path), "-C", str(folder), *options, "."]
    subprocess.run(command, check=True, capture_output=True)
    return path


def header(name: bytes, size: int = 0, kind: bytes = b"0", magic: bytes = b"ustar\x0000", **fields: bytes) -> bytearray:
    """Return a sound header block. fields: `size`, `linkname` or `prefix` as bytes of the block."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:124] = b"0000644\0" + b"0001750\0" * 2
    block[124:136] = fields.get("size_field", b"%011o\0" % size)
    block[136:148] = b"14631124371\0"
    block[156:157] = kind
    block[157 : 157 + len(fields.get("linkname", b""))] = fields.get("linkname", b"")
    block[257 : 257 + len(magic)] = magic
    block[345 : 345 + len(fields.get("prefix", b""))] = fields.get("prefix", b"")
    return seal(block)


def seal(block: bytearray) -> bytearray:
    """Write the checksum of a header block into it."""
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return block


def pad(content: bytes) -> bytes:
    """The content, padded to whole blocks."""
    return content + bytes(-len(content) % BLOCK)


def entry(name: bytes, content: bytes = b"", kind: bytes = b"0", **fields: bytes) -> bytes:
    """A header and its content."""
    return bytes(header(name, len(content), kind, **fields)) + pad(content)


def pax(records: dict[bytes, bytes], kind: bytes = b"x") -> bytes:
    """An extended header with these records."""
    content = b""
    for key, value in records.items():
        body = b" " + key + b"=" + value + b"\n"
        length = len(body) + len(str(len(body)))
        length += len(str(length)) > len(str(len(body)))
        content += b"%d" % length + body
    return entry(b"PaxHeaders.0/x", content, kind)


_BASE_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


def webdataset_samples(path: Path) -> Iterator[dict[str, bytes]]:
    """Yield the samples of a tar as defined by webdataset's documentation, read by tarfile: suffix -> content.

    Modelled on base_plus_ext and group_by_keys of webdataset/tariterators.py: regular members only, key and extension
    by a regular expression, a new sample when the key changes, lower-case extensions.
    """
    sample: dict[str, bytes] = {}
    key = None
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as tar:
        for info in tar:
            found = _BASE_AND_EXTENSION.match(info.name) if info.isreg() else None
            if found is None:
                continue
            if found[1] != key:
                if sample:
                    yield sample
                key, sample = found[1], {"__key__": found[1].encode("utf-8", "surrogateescape")}
            assert found[2].lower() not in sample
            content = tar.extractfile(info)
            assert content is not None
            sample[found[2].lower()] = content.read()
    if sample:
        yield sample


def refusal_of(path: Any, **options: Any) -> LoaderError:
    """Return the error, of one line, that opening tars with `options` raises."""
    with pytest.raises(LoaderError) as caught:
        open_source(path, **options)
    assert "\n" not in str(caught.value)
    return caught.value
