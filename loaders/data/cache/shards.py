"""The file names of a cache of several shards, and the manifest that makes them a set."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Annotated

import msgspec

from penstock.loaders.data.cache.format import DIGEST_BYTES, SCHEMA, About, Schema, Settings, digest_of
from penstock.loaders.system.durable_file import replace_file
from penstock.loaders.system.file_read import open_regular, read_error
from penstock.loaders.system.json_file import ByteText, Count, decode_json
from penstock.pipelines.errors import LoaderError

MANIFEST = b"penstock-cache.json"
MAX_SHARDS = 99999
_SHARD_NAME = re.compile(rb"shard-(\d{5})-of-(\d{5})\.h5")
_MAX_MANIFEST_BYTES = 64 << 20


def shard_name(shard: int, shards: int) -> bytes:
    """Return the file name of shard `shard` of `shards`, counted from 0."""
    return b"shard-%05d-of-%05d.h5" % (shard, shards)


def is_shard_name(name: bytes) -> bool:
    """Return whether a file of this name is a shard of any set."""
    return _SHARD_NAME.fullmatch(name) is not None


def shard_range(shard: int, shards: int, samples: int) -> tuple[int, int]:
    """Return the first sample of a shard, and the one after its last."""
    return shard * samples // shards, (shard + 1) * samples // shards


def about_digest(about: About) -> str:
    """Return a shard's digest for the manifest; it covers its tables and, through their CRCs, its images."""
    return about.pack()[-DIGEST_BYTES:].hex()


@dataclass(frozen=True, kw_only=True)
class ShardSet:
    """The content of a set's manifest.

    Attributes:
        schema: version of the format.
        encoding: fields of the Encoding of all shards.
        fingerprint: hex digest that identifies the stream.
        samples: number of images of each shard, in order.
        digests: hex digest of each shard, see about_digest.
    """

    schema: Count = SCHEMA
    encoding: Settings
    fingerprint: ByteText
    samples: list[Count]
    digests: Annotated[list[ByteText], msgspec.Meta(min_length=1, max_length=MAX_SHARDS)]

    @classmethod
    def of(cls, abouts: list[About]) -> ShardSet:
        """Return the set of these shards, in order."""
        return cls(
            encoding=abouts[0].encoding,
            fingerprint=abouts[0].fingerprint,
            samples=[about.samples for about in abouts],
            digests=[about_digest(about) for about in abouts],
        )

    @property
    def names(self) -> list[bytes]:
        """File names of the shards, made from their number and never read from the manifest."""
        return [shard_name(shard, len(self.digests)) for shard in range(len(self.digests))]

    def pack(self) -> bytes:
        """Return the bytes of the manifest: one line of JSON, then its digest."""
        text = json.dumps(asdict(self), sort_keys=True).encode("ascii")
        return text + b"\n" + digest_of(text).encode("ascii") + b"\n"


def write_manifest(folder: bytes, shards: ShardSet) -> None:
    """Make the shards in `folder` a set, atomically and durably. Raises OSError."""
    replace_file(os.path.join(folder, MANIFEST), shards.pack())


def read_manifest(folder: bytes) -> ShardSet:
    """Read the set in `folder`. Raises LoaderError E-CACHE if it is incomplete or damaged, E-ACCESS, E-READ."""
    path = os.path.join(folder, MANIFEST)
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(_MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        if os.path.isdir(folder) and not any(name.endswith(b".h5") for name in os.listdir(folder)):
            fix = "pass a cache file or a folder of shards; `penstock cache build` makes one from images"
            raise LoaderError("E-CACHE", "this folder does not contain a cache", fix=fix, path=folder) from None
        raise LoaderError(
            "E-CACHE", f"no {MANIFEST.decode()}: the set of shards is not complete", path=folder
        ) from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise LoaderError("E-CACHE", "not a regular file", fix="remove it", path=path) from error
        raise read_error(error, path) from error
    text, _, rest = data.partition(b"\n")
    if rest != digest_of(text).encode("ascii") + b"\n":
        raise LoaderError("E-CACHE", "the digest of the manifest differs", path=path)
    try:
        schema = decode_json(text, Schema).schema
        if schema != SCHEMA:
            raise LoaderError("E-CACHE", f"its schema is {schema}, but this version reads {SCHEMA}", path=path)
        shards = decode_json(text, ShardSet)
        sound = len(shards.digests) == len(shards.samples)
    except ValueError:
        sound = False
    if not sound:
        raise LoaderError("E-CACHE", "the manifest does not describe a set of shards", path=path)
    return shards


def shard_paths(folder: bytes) -> list[bytes]:
    """Return the paths of the shards of a complete set, in order. Raises LoaderError as read_manifest."""
    return [os.path.join(folder, name) for name in read_manifest(folder).names]


def check_shards(folder: bytes, shards: ShardSet, abouts: list[About]) -> None:
    """Raise LoaderError E-CACHE if the manifest was written for another shard."""
    for name, digest, about in zip(shards.names, shards.digests, abouts, strict=True):
        if about_digest(about) != digest:
            raise LoaderError("E-CACHE", "this shard belongs to another set", path=os.path.join(folder, name))
