"""The bytes of a cache: the record of each sample, the head before its strips, and the metadata.

Datasets of the HDF5 file, all in the root group, contiguous, without filters:

- payload    uint8 [bytes]   the stored images, one after the other
- samples    RECORD [n]      the place and the coding of each image
- names      uint8 [bytes]   the images' names in the source, one after the other
- name_ends  int64 [n]       the end of each name
- about      uint8 [bytes]   JSON (see About), then the BLAKE2b digest of that JSON

For a source with fields (schema 2), `samples` continues with a FILE record for each mask or image target: all of the
first such field, then all of the next. A sample's masks and targets, whole files, follow its image in the payload. The
other fields are in

- fields     uint8 [bytes]   their arrays, one after the other, see PackedField

A chain of checks leads from the digest in `about` to every payload byte: `about` contains the digests of the tables; a
record contains the CRC-32 of its stored bytes, or of its head if they are read in parts; a head contains a CRC for each
strip. These are running values (the CRC of all strips up to and including this one), so that one call checks any run
of strips: crc32(strips a to b, value before a) == value after b.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from penstock.loaders.data.fields.packed_fields import PackedField
from penstock.loaders.system.json_file import ByteText, Count, decode_json
from penstock.pipelines.messages.checked import checked_bool, checked_choice, checked_int, set_checked

SCHEMA, FIELDS_SCHEMA = 1, 2  # without and with fields; a reader refuses any other
DIGEST_BYTES = 32
TABLES = ("samples", "names", "name_ends")
FIELDS = "fields"
# How a sample is stored. FILE: the source's own bytes, read whole. STRIPS: a JPEG with restart markers, head = STRIP
# entries, then the JPEG up to its first coded byte. PIXELS: uint8 [height, width, 3], head = only CRCs.
FILE, STRIPS, PIXELS = 0, 1, 2
RECORD = np.dtype(
    [
        ("offset", "<i8"),  # in the payload
        ("length", "<u4"),  # bytes stored, head included
        ("head", "<u4"),  # bytes of the head; 0 for FILE
        ("crc", "<u4"),  # of the head, or of all bytes for FILE
        ("width", "<u4"),  # pixels as stored, before any EXIF orientation; 0 for an image that cannot be decoded
        ("height", "<u4"),
        ("label", "<i4"),
        ("kind", "u1"),
        ("orientation", "u1"),  # EXIF, 1 to 8
        ("mcu_width", "u1"),  # pixels; for STRIPS
        ("mcu_height", "u1"),
        ("segment_mcus", "<u2"),  # MCUs from one restart marker to the next; for STRIPS
        ("strip_rows", "<u2"),  # of MCUs (STRIPS) or of pixels (PIXELS)
        (
            "height_offset",
            "<u2",
        ),  # offset in the JPEG header of the frame's 16-bit height; the width follows it; for STRIPS
    ]
)


class Record(NamedTuple):
    """A scalar of RECORD as Python values."""

    offset: int
    length: int
    head: int
    crc: int
    width: int
    height: int
    label: int
    kind: int
    orientation: int
    mcu_width: int
    mcu_height: int
    segment_mcus: int
    strip_rows: int
    height_offset: int


STRIP = np.dtype([("end", "<u4"), ("crc", "<u4")])  # end: bytes after the head; crc: of all strips so far
PIXEL_STRIP_ROWS = 16
JPEG_STRIP_PIXELS = 16  # height of a strip, or one row of MCUs if that is higher


# Bytes, such as names of classes, are base 64, as msgspec reads them.
_to_json = partial(json.dumps, sort_keys=True, default=lambda data: base64.b64encode(data).decode("ascii"))


def _fastest_crc32() -> Callable[[Any, int], int]:
    """Return the fastest CRC-32. ISA-L's takes 0.9 us for 50 kB, CPython's zlib 7.6 us (measured, EPYC Zen 5)."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    fast: Callable[[Any, int], int] = isal_zlib.crc32
    return fast


crc32 = _fastest_crc32()


def digest_of(data: bytes) -> str:
    """Return the hex digest that a cache stores for these bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


class DamagedCacheError(ValueError):
    """Raised for bytes that are not a complete cache of this schema."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How images are stored. Raises ValueError for settings that contradict each other.

    Attributes:
        kind: "jpeg" keeps files, and cuts JPEGs into strips; "raw" stores RGB pixels of 8 bits; "array" keeps JPEGs and
            stores other images as .npy, with their channels and levels: TIFFs need not be decoded again.
        resize: pixels of the shorter side, never enlarged; None keeps the size.
        longer_side: whether `resize` applies to the longer side.
        quality: quality of re-encoded JPEGs, 1 to 100; None keeps the coefficients.
    """

    kind: str = "jpeg"
    resize: int | None = None
    longer_side: bool = False
    quality: int | None = None

    def __post_init__(self) -> None:
        checked_choice("encoding", self.kind, ("jpeg", "raw", "array"))
        set_checked(
            self,
            resize=None if self.resize is None else checked_int("resize of Encoding", self.resize, 1, 65500),
            longer_side=checked_bool("longer_side of Encoding", self.longer_side),
            quality=None if self.quality is None else checked_int("quality of Encoding", self.quality, 1, 100),
        )
        if self.kind == "raw" and self.quality is not None:
            raise ValueError("raw pixels have no quality: leave quality out, or use encoding jpeg")
        if self.kind == "array" and not self.lossless:
            raise ValueError("arrays keep their size and levels: leave out resize and quality")
        if self.longer_side and self.resize is None:
            raise ValueError("longer_side needs resize")
        if self.kind == "jpeg" and self.resize is not None and self.quality is None:
            set_checked(self, quality=90)

    @property
    def keeps_levels(self) -> bool:
        """Whether all channels and bits of the source's images are kept."""
        return self.lossless and self.kind != "raw"

    @property
    def lossless(self) -> bool:
        """Whether every pixel equals the source's."""
        return self.resize is None and self.quality is None

    def describe(self) -> str:
        """Return a short text, such as "jpeg, lossless" or "raw, lossy: shorter side 256"."""
        if self.lossless:
            return f"{self.kind}, lossless"
        side = [f"{'longer' if self.longer_side else 'shorter'} side {self.resize}"] if self.resize else []
        return f"{self.kind}, lossy: " + ", ".join(side + ([f"quality {self.quality}"] if self.quality else []))


@dataclass(frozen=True)
class Schema:
    """The format version that a JSON text declares; it decides how the rest is read."""

    schema: Count


Settings = dict[str, int | bool | str | None]  # the fields of an Encoding, as JSON


@dataclass(frozen=True, kw_only=True)
class About:
    """The metadata of a cache file, stored as JSON.

    The digest proves that the JSON is intact, not that it is benign: every field is checked when it is read.

    Attributes:
        schema: version of the format.
        encoding: fields of an Encoding.
        fingerprint: hex digest that identifies the stream, see cache_fingerprint.
        classes: names by class number (bytes as surrogateescape text).
        source: "root", "fingerprint" and "content"; the last also covers modification times.
        shard: number of this shard, number of shards, first sample in the source, the one after the last.
        samples: number of images, at least 1.
        payload_bytes: bytes of the stored images.
        source_bytes: bytes read from the source for them.
        counts: images stored as strips, file or pixels, and `bad` (cannot be decoded; stored unchanged).
        kept: reason -> number of JPEGs stored unchanged.
        psnr_db: mean PSNR over a sample of the images, None for a lossless cache.
        digests: hex digest of each of TABLES.
        versions: name -> version of the packages that built it.
        fields: the fields (schema 2), in the order of the source.
    """

    schema: Count = SCHEMA
    encoding: Settings
    fingerprint: ByteText
    classes: list[ByteText]
    source: dict[str, ByteText]
    shard: Annotated[list[Count], msgspec.Meta(min_length=4, max_length=4)]
    samples: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    payload_bytes: Count
    source_bytes: Count
    counts: dict[str, Count]
    kept: dict[str, Count] = field(default_factory=dict)
    psnr_db: float | None = None
    digests: dict[str, ByteText]
    versions: dict[str, ByteText] = field(default_factory=dict)
    fields: list[PackedField] = field(default_factory=list)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the datasets that `digests` covers."""
        return (*TABLES, FIELDS) if self.fields else TABLES

    @property
    def pictures(self) -> list[str]:
        """Names of the fields that are masks or image targets."""
        return [each.name for each in self.fields if each.kind.is_picture]

    def pack(self) -> bytes:
        """Return the bytes of the dataset `about`."""
        values = asdict(self)
        if not self.fields:
            del values["fields"]
        for each in values.get("fields", ()):
            target = each["kind"]["target"]
            if target is None:  # as in caches of earlier versions
                del each["kind"]["target"]
            elif target["missing"] is None:
                del target["missing"]
        text = _to_json(values).encode("ascii")
        return text + bytes.fromhex(digest_of(text))

    @classmethod
    def unpack(cls, data: bytes) -> About:
        """Parse the bytes of `pack`. Raises DamagedCacheError."""
        text, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
        if digest_of(text) != digest.hex():
            raise DamagedCacheError("the digest of its metadata differs")
        try:
            schema = decode_json(text, Schema).schema
            about = decode_json(text, cls) if schema in (SCHEMA, FIELDS_SCHEMA) else None
        except ValueError as error:
            raise DamagedCacheError(f"its metadata is not JSON of a known schema: {error}") from error
        if about is None:
            raise DamagedCacheError(
                f"its schema is {schema}, but this version of penstock reads {SCHEMA} and {FIELDS_SCHEMA}"
            )
        if bool(about.fields) != (schema == FIELDS_SCHEMA):
            raise DamagedCacheError(f"its metadata of schema {schema} has {len(about.fields)} fields")
        for name, table in vars(about).items():
            if isinstance(table, dict) and not all(key.isprintable() for key in table):
                raise DamagedCacheError(f"its metadata has names in {name} that are not printable")
        return about

    @property
    def coded(self) -> Encoding:
        """The encoding as settings. Raises TypeError, ValueError for impossible settings."""
        return Encoding(**self.encoding)  # type: ignore[arg-type]


def cache_fingerprint(source: str, encoding: Encoding) -> str:
    """Return the stream's fingerprint: the source's own for a lossless cache, so that loader states fit both."""
    if encoding.lossless:
        return source
    return digest_of(json.dumps(["penstock cache", source, asdict(encoding)]).encode("ascii"))
