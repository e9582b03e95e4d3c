"""Compares the options of a loader with the defaults of its backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields

from penstock.bench.record.bench_record import Options
from penstock.loaders.data.remote.remote_source import RemoteOptions
from penstock.loaders.front.backends import BACKENDS


def non_default_options(backend: str, options: Options) -> Options:
    """Return the options that differ from the backend's defaults, without `workers`, which is always listed."""
    own: dict[str, object] = {field.name: field.default for field in fields(RemoteOptions)}
    own |= {field.name: field.default for field in fields(BACKENDS[backend].options)} if backend in BACKENDS else {}
    return {k: v for k, v in options.items() if k != "workers" and own.get(k, MISSING) != v}


def all_options(backend: str, options: Options, about: Mapping[str, object]) -> Options:
    """Return `options` plus the loader's own choices from its description `about`."""
    accepted = fields(BACKENDS[backend].options)
    own = {f.name: value for f in accepted if isinstance(value := about.get(f.name), (int, float, str)) and value}
    own.pop("start_method", None)
    return {**own, **options}
