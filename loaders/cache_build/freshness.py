"""Checks whether a cache is fresh: it must match its source, its settings and the libraries that made its pixels."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
from dataclasses import asdict
from typing import Any

import simplejpeg
import torch

from penstock.loaders.cache_build.encode import NO_LIBRARY
from penstock.loaders.cache_build.hdf5_frame import hdf5_versions
from penstock.loaders.data.cache.format import SCHEMA, About, Encoding, digest_of
from penstock.loaders.data.sources.contract import Source, content_of, field_kinds_of
from penstock.pipelines.native.library import native_library

# A new major version may decode or resize to other pixels. A lossless cache of JPEGs contains no pixels made by them.
_PIXEL_LIBRARIES = ("simplejpeg", "torch")
_NATIVE = "native library"  # its name in the versions
_NO_PROGRAM = "jpegtran is missing"  # in caches of earlier versions, which left progressive JPEGs to that program


@functools.cache
def build_versions() -> dict[str, str]:
    """Return name -> version of the packages that build a cache. Raises LoaderError E-DEPENDENCY without h5py."""
    try:
        own = importlib.metadata.version("penstock-loader")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        own = "unknown"
    versions = {"penstock": own, "simplejpeg": simplejpeg.__version__, "torch": torch.__version__, **hdf5_versions()}
    return {**versions, _NATIVE: "missing" if native_library() is None else own}


def source_identity(source: Source) -> dict[str, str]:
    """Return `About.source`: the root, a digest of images and labels, and one that also covers modification times."""
    root: bytes = getattr(source, "root", b"")
    name = root.decode("utf-8", "surrogateescape")
    return {"root": name, "fingerprint": source.fingerprint, "content": content_of(source)}


def build_key(source: Source, encoding: Encoding, shard: tuple[int, int]) -> str:
    """Return a digest of everything that decides a cache file's bytes; a stopped build resumes only if it is equal."""
    identity = source_identity(source)
    # The native library changes the bytes of copies but not their pixels: a build may resume with or without it.
    versions = {name: version for name, version in build_versions().items() if name != _NATIVE}
    parts = [SCHEMA, asdict(encoding), identity["fingerprint"], identity["content"], shard, versions]
    return digest_of(json.dumps(parts, sort_keys=True).encode("ascii"))


def why_stale(about: About, source: Source, encoding: Encoding, shard: tuple[int, int] = (0, 1)) -> str:
    """Return why the cache must not be used for this source and these settings, in a few words; "" if it may be."""
    identity = source_identity(source)
    if about.coded != encoding:
        return f"it contains {about.coded.describe()}, but {encoding.describe()} was requested"
    kinds = field_kinds_of(source)
    if {each.name: each.kind for each in about.fields} != kinds:
        known, now = (", ".join(names) or "no fields" for names in ([each.name for each in about.fields], kinds))
        return f"it contains {known}, but the source has {now}" if known != now else f"{now} of the source have changed"
    if about.source.get("fingerprint") != identity["fingerprint"]:
        fields = ", fields" * bool(kinds)
        return f"images{fields}, sizes or classes of the source have changed since it was built"
    if about.source.get("content") != identity["content"]:
        return "files of the source were modified since it was built"
    if list(about.shard[:2]) != list(shard):
        return f"it is shard {about.shard[0] + 1} of {about.shard[1]}, not {shard[0] + 1} of {shard[1]}"
    if not encoding.keeps_levels:
        for name in _PIXEL_LIBRARIES:
            then, now = about.versions.get(name, ""), build_versions()[name]
            if _major(then) != _major(now):
                return f"its pixels were made by {name} {then}, but {now} is installed"
    return ""


def is_improvable(about: About) -> bool:
    """Return whether a rebuild would improve it: some JPEGs lack restart markers that could be added now."""
    return native_library() is not None and any(about.kept.get(reason) for reason in (NO_LIBRARY, _NO_PROGRAM))


def _major(version: Any) -> str:
    return re.split(r"\D", str(version), maxsplit=1)[0]
