"""Profile: a saved choice of backend and options, written by `penstock bench --save`, read by backend="auto"."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from penstock.loaders.system.json_file import decode_json, write_json
from penstock.loaders.system.machine import available_cpus
from penstock.pipelines.errors import LoaderError

DEFAULT_PROFILE = "default"
_VERSION = 2
PlainValue = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The fastest settings that were found on a machine.

    Attributes:
        backend: name of the backend.
        decoder: name of the JPEG decoder, or "auto".
        workers: number of workers, None for the backend's default.
        prefetch: the backend's option (torch, hdf5: batches ahead per worker), None for the backend's default.
        cpus: number of processors that the process could use; the profile is ignored if it differs.
        images_per_s: the measured rate.
        options: other options of the backend, by name.
        version: version of the file's format.
    """

    backend: str = "torch"
    decoder: str = "auto"
    workers: int | None = None
    prefetch: int | None = None
    cpus: int = 0
    images_per_s: float = 0.0
    options: Mapping[str, PlainValue | list[PlainValue]] = field(default_factory=dict)
    version: int = _VERSION


def profile_path(name: str | os.PathLike[str]) -> Path:
    """Return the file of the profile `name`: a path unchanged, a bare name in the user's config folder."""
    if os.sep in os.fspath(name) or os.fspath(name).endswith(".json"):
        return Path(name)
    # Without a home folder `~` stays in the path; save_profile refuses that.
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config) / "penstock" / f"{os.fspath(name)}.json"


def save_profile(profile: Profile, name: str | os.PathLike[str] = DEFAULT_PROFILE) -> Path:
    """Write `profile`, completely or not at all, and return its path.

    Raises OSError if the folder cannot be written, LoaderError E-MISUSE if the user has no home folder.
    """
    path = profile_path(name)
    if path.parts[0] == "~":
        fix = "export XDG_CONFIG_HOME=/a/folder, or pass the profile's path"
        raise LoaderError("E-MISUSE", "the profile needs a home folder, but there is none", fix=fix)
    write_json(path, asdict(profile))
    return path


def load_profile(name: str | os.PathLike[str] = DEFAULT_PROFILE) -> Profile | None:
    """Return the profile saved under `name`; None if there is none, or if its number of processors differs.

    Raises LoaderError E-MISUSE for a file that is not a profile.
    """
    path = profile_path(name)
    try:
        text = path.read_bytes()
        found = decode_json(text, dict[str, Any])
        if set(found) != {field.name for field in fields(Profile)} or found["version"] != _VERSION:
            raise profile_error("not a profile of this version", path)
        profile = decode_json(text, Profile)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise profile_error(f"the profile cannot be read ({error})", path) from None
    return profile if profile.cpus == available_cpus() else None


def profile_error(cause: str, name: str | os.PathLike[str]) -> LoaderError:
    """Return the error for a profile that cannot be used."""
    return LoaderError("E-MISUSE", cause, path=str(profile_path(name)), fix="delete it")
