"""A saved choice of backend and settings, written by `penstock bench --save`, read by backend="auto"."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from penstock.loaders.system.machine import available_cpus
from penstock.pipelines.errors import LoaderError

DEFAULT_PROFILE = "default"
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was fastest on this machine; `cpus` tells whether it is still this machine.

    options: more of the backend's options, by name; numbers, text, booleans, None and lists of these.
    """

    backend: str = "torch"
    decoder: str = "auto"
    workers: int | None = None
    prefetch: int | None = None
    cpus: int = 0
    images_per_s: float = 0.0
    options: Mapping[str, object] = field(default_factory=dict)
    version: int = _VERSION


def profile_path(name: str | os.PathLike[str]) -> Path:
    """Where the profile `name` lies: a path stays what it is, a bare word is a file in the user's config folder."""
    if os.sep in os.fspath(name) or os.fspath(name).endswith(".json"):
        return Path(name)
    # Without a home, and a user without a name, `~` stays: a folder that is not there.
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config) / "penstock" / f"{os.fspath(name)}.json"


def save_profile(profile: Profile, name: str | os.PathLike[str] = DEFAULT_PROFILE) -> Path:
    """Write `profile`, whole or not at all; returns where.

    Raises OSError where the folder cannot be written, LoaderError E-MISUSE where the user has none.
    """
    path = profile_path(name)
    if path.parts[0] == "~":
        fix = "export XDG_CONFIG_HOME=/a/folder, or give the profile's path"
        raise LoaderError("E-MISUSE", "there is no home folder for the profile", fix=fix)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(profile), indent=2) + "\n")
    temporary.replace(path)
    return path


def load_profile(name: str | os.PathLike[str] = DEFAULT_PROFILE) -> Profile | None:
    """The profile saved under `name`, or None if there is none or it was measured with another number of processors.

    Raises LoaderError E-MISUSE for a file that is no profile.
    """
    path = profile_path(name)
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise not_usable(f"the profile cannot be read ({error})", path) from None
    known = {field.name for field in fields(Profile)}
    if not isinstance(found, dict) or set(found) != known or found.get("version") != _VERSION:
        raise not_usable("this is no profile of this version", path)
    if not isinstance(found["options"], dict) or not all(map(_is_plain, found["options"].values())):
        raise not_usable("its options are no mapping of names to plain values", path)
    profile = Profile(**found)
    return profile if profile.cpus == available_cpus() else None


def not_usable(cause: str, name: str | os.PathLike[str]) -> LoaderError:
    """What is said of a profile that cannot be used."""
    return LoaderError("E-MISUSE", cause, path=str(profile_path(name)), fix="delete it")


def _is_plain(value: object) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(part is None or isinstance(part, (bool, int, float, str)) for part in parts)
