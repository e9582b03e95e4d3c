"""Choice of backend, options and decoder: from the arguments or, for "auto", from a saved profile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from penstock.loaders.front.backends import BACKEND_NAMES, BACKENDS, Backend
from penstock.loaders.front.profile import DEFAULT_PROFILE, Profile, load_profile, profile_error, profile_path
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_choice, shown
from penstock.pipelines.sample.decode import JpegDecoder, choose_jpeg_decoder

ProfileName = str | os.PathLike[str]


class Choice(NamedTuple):
    """The backend, options and decoder of a loader.

    Attributes:
        backend: the backend.
        options: checked options of its engine.
        source_options: options of its prepare_source.
        decoder: name of the decoder as requested.
        jpeg_decoder: the decoder for images that the native library does not support.
        reason: why this decoder was chosen, in a few words.
    """

    backend: Backend
    options: WorkerOptions
    source_options: dict[str, object]
    decoder: str
    jpeg_decoder: JpegDecoder
    reason: str


def choose_named(
    backend: str, decoder: str | None, options: Mapping[str, object], profile: ProfileName
) -> Choice | None:
    """Return the choice that the arguments name; None for backend "auto", because that choice depends on the source.

    Raises ValueError for arguments that are wrong for every source, LoaderError E-DEPENDENCY for a decoder that is
    not installed, E-MISUSE for a named profile that does not exist.
    """
    checked_choice("backend", backend, BACKEND_NAMES)
    if profile != DEFAULT_PROFILE:
        _check_profile(profile, backend)
    if backend != "auto":
        return _choose(BACKENDS[backend], decoder, options)
    choose_jpeg_decoder("auto" if decoder is None else decoder)
    return None


def choose_saved(decoder: str | None, options: Mapping[str, object], profile: ProfileName, *, is_cache: bool) -> Choice:
    """Return the choice from the saved profile, or the defaults if there is no profile. Arguments take precedence.

    A profile of the hdf5 backend is used only with a cache: as the source, or from the option `cache`. Raises
    LoaderError E-MISUSE for a profile with options that its backend does not accept.
    """
    default = BACKENDS["hdf5" if "cache" in options else "torch"]
    saved = load_profile(profile)
    if saved is None or (saved.backend == "hdf5" and not is_cache and "cache" not in options):
        return _choose(default, decoder, options)
    saved_options = _checked_options(saved, profile)
    decoder = saved.decoder if decoder is None else decoder
    if "cache" in options and saved.backend == "torch":
        return _choose(default, decoder, options)
    return _choose(BACKENDS[saved.backend], decoder, {**saved_options, **options})


def _choose(backend: Backend, decoder: str | None, options: Mapping[str, object]) -> Choice:
    decoder = "auto" if decoder is None else decoder
    return Choice(backend, *backend.parse(options), decoder, *choose_jpeg_decoder(decoder))


def _checked_options(saved: Profile, name: ProfileName) -> dict[str, object]:
    """Return the options of a profile. Raises LoaderError E-MISUSE for options that its backend does not accept."""
    named = {k: v for k, v in (("workers", saved.workers), ("prefetch", saved.prefetch)) if v is not None}
    options: dict[str, object] = {**named, **saved.options}
    if saved.backend not in BACKENDS:
        raise profile_error(f"unknown backend {saved.backend!r}", name)
    try:
        _, of_source = BACKENDS[saved.backend].parse(options)
    except (TypeError, ValueError) as error:
        raise profile_error(f"its backend does not accept its options ({error})", name) from None
    if of_source:
        raise profile_error(f"a profile cannot contain options of a source ({', '.join(of_source)})", name)
    return options


def _check_profile(name: object, backend: str) -> None:
    """Refuse a named profile that would not be read."""
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(f"profile must be a name or a path, got {shown(name)}")
    if backend != "auto":
        raise ValueError(f"profile needs backend='auto', which reads it; got profile={shown(name)}")
    if not profile_path(name).exists():
        fix = "correct its name, or save it: penstock bench DATA --save NAME"
        raise LoaderError("E-MISUSE", "no such profile", fix=fix, path=str(profile_path(name)))
