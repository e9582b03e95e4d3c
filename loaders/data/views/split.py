"""Splits a source by a hash of each sample's name, so that samples never move to another part."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, has_targets, refuse_mixture, sample_name
from penstock.loaders.data.sources.data import Data, as_data
from penstock.loaders.system.durable_file import ensure_writable
from penstock.loaders.system.json_file import ByteText, decode_json, write_json
from penstock.loaders.system.real_path import real_place
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_bool, checked_int, checked_number, shown

_HASHES = 1 << 64
_TOLERANCE = 1e-9  # allowed difference of the sum of shares from 1, as for 0.7 + 0.2 + 0.1
_FORMAT = "penstock split 1"
_SETTINGS = ("parts", "seed", "by_class")
_EVERYTHING = b""  # name of the only group if the split is not by class
_SEVERAL = b"\0several"  # name of the group of files that are listed in several classes

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class SavedSplit:
    """The content of a split's file.

    Attributes:
        parts: the share of each part.
        seed: seed of the hashes.
        by_class: whether each class has separate thresholds.
        thresholds: class name -> the hashes at which its second and later parts begin, 16 hex digits each; without
            by_class, those of all samples under the name "".
        format: version of the file, _FORMAT.
    """

    parts: list[float]
    seed: int
    by_class: bool
    thresholds: dict[ByteText, list[str]] = field(default_factory=dict)
    format: str = _FORMAT


def split_source(
    source: Source,
    parts: float | Sequence[float] = 0.9,
    *,
    seed: int = 0,
    by_class: bool = True,
    save: str | os.PathLike[str] | None = None,
) -> tuple[Data, ...]:
    """Split a source into parts; each sample is in exactly one part, and each part keeps the order of the source.

    A sample's part depends only on a hash of its name (sample_name) and of `seed`: it does not change when the data is
    moved, reordered or extended. Equal names of one class get the same part. So do all samples of a file that is listed
    in several classes: such files are a class of their own in the split. The hash is compared with thresholds, chosen
    to give exact shares, for each class if `by_class`. A class that a saved split does not contain is split by the
    plain shares.

    The arguments are those of `split`. Raises ValueError for impossible shares, LoaderError E-STATE for a file of
    another split, E-NODATA for an empty part, E-MISUSE and E-ACCESS if the file cannot be written.
    """
    shares, seed, by_class = (
        _checked_shares(parts),
        checked_int("seed", seed, 0, _HASHES - 1),
        checked_bool("by_class", by_class),
    )
    refuse_mixture(source, "split")
    wanted = SavedSplit(parts=list(map(float, shares)), seed=seed, by_class=by_class)
    known = None if save is None else _load_split(save, wanted)
    if known is None and save is not None:
        ensure_writable(os.fsdecode(real_place(save)))
    names, groups = _group_samples(source, by_class)
    hashes = hash_names(source, seed)
    kept = np.arange(len(source))  # the samples that decide the thresholds
    several = _find_several(source, hashes, groups)
    if len(several):
        groups[several] = len(names)
        names.append(_SEVERAL)
        once = several[np.unique(hashes[several], return_index=True)[1]]
        kept = np.setdiff1d(kept, np.setdiff1d(several, once))
    ends = [sum(shares[: part + 1]) for part in range(len(shares) - 1)]
    plain = np.array([min(int(end * _HASHES), _HASHES - 1) for end in ends], np.uint64)  # for infinitely many hashes
    if known is None:
        thresholds = _fit_thresholds(hashes[kept], groups[kept], len(names), shares, plain)
        if save is not None:
            begins = ([f"{value:016x}" for value in own] for own in thresholds.tolist())
            texts = dict(zip((name.decode("utf-8", "surrogateescape") for name in names), begins, strict=True))
            write_json(save, {**asdict(wanted), "thresholds": texts})
    else:
        thresholds = np.array([known.get(name, plain.tolist()) for name in names], np.uint64)
    part_of = (hashes[:, None] >= thresholds[groups]).sum(axis=1)
    return tuple(_take(source, part_of, part) for part in range(len(shares)))


def hash_names(source: Source, seed: int) -> Hashes:
    """Return a 64-bit hash of the name of each sample: uint64 [n], keyed BLAKE2b."""
    keyed = hashlib.blake2b(digest_size=8, key=b"penstock split 1" + seed.to_bytes(8, "little")).copy

    def hash_one(index: int) -> bytes:
        state = keyed()  # avoids the setup per name, which takes as long as the hash
        state.update(sample_name(source, index))
        return state.digest()

    return np.frombuffer(b"".join(map(hash_one, range(len(source)))), "<u8").astype(np.uint64)


def _take(source: Source, part_of: npt.NDArray[np.int64], part: int) -> Data:
    indices = np.flatnonzero(part_of == part)
    if not len(indices):
        raise LoaderError(
            "E-NODATA",
            f"part {part + 1} of the split contains none of the {len(source):,} samples",
            fix="choose larger shares, or pass by_class=False if classes have few samples",
        )
    return as_data(source).take(indices)


def _checked_shares(parts: Any) -> list[Fraction]:
    """Return the exact decimal shares of all parts: 0.1, not the double next to it."""
    single = isinstance(parts, (int, float, np.number))
    if not single and (isinstance(parts, str) or not hasattr(parts, "__len__") or len(parts) < 2):
        raise ValueError(f"parts must be a share such as 0.9 or shares such as (0.8, 0.1, 0.1), got {shown(parts)}")
    shares = [
        Fraction(str(checked_number("a share", share, above=0, high=1))) for share in ([parts] if single else parts)
    ]
    if single:
        shares.append(1 - shares[0])
    if not all(shares) or not math.isclose(sum(shares), 1, abs_tol=_TOLERANCE):
        raise ValueError(f"shares must be above 0 and add up to 1, got {shown(parts)}")
    return shares


def _group_samples(source: Source, by_class: bool) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Return the names of groups that are split separately, and the group of each sample (int64 [n])."""
    if not by_class or has_targets(source):
        return [_EVERYTHING], np.zeros(len(source), np.int64)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(source.classes))}  # classes may share a name
    group_of_class = np.array([numbers[name] for name in source.classes], np.int64)
    return list(numbers), group_of_class[source.labels(np.arange(len(source), dtype=np.int64))]


def _find_several(source: Source, hashes: Hashes, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the samples of files that are listed in several groups, int64 [n] in ascending order.

    Samples of containers may share a name and differ, such as the first of each tar, so only files count.
    """
    order = np.lexsort((groups, hashes))
    begins = np.flatnonzero(np.r_[True, np.diff(hashes[order]) != 0])
    ends = np.r_[begins[1:], len(order)]
    differ = groups[order[begins]] != groups[order[ends - 1]]
    found: list[int] = []
    for begin, end in zip(begins[differ].tolist(), ends[differ].tolist(), strict=True):
        samples_of: dict[bytes, list[int]] = {}
        for index in order[begin:end].tolist():
            path, name = source.path(index), sample_name(source, index)
            if os.path.isabs(path) and (path == name or path.endswith(b"/" + name)):
                samples_of.setdefault(path, []).append(index)
        found += chain.from_iterable(each for each in samples_of.values() if len(set(groups[each].tolist())) > 1)
    return np.array(sorted(found), np.int64)


def _fit_thresholds(
    hashes: Hashes, groups: npt.NDArray[np.int64], num_groups: int, shares: Sequence[Fraction], plain: Hashes
) -> Hashes:
    """Return thresholds [groups, parts - 1] that give exact shares of each group.

    Each lies between two of the group's hashes, as near as possible to the plain threshold, so that samples added later
    are split as nearly as possible by the plain shares.
    """
    order = np.lexsort((hashes, groups))
    ordered = hashes[order]
    begins = np.searchsorted(groups[order], np.arange(num_groups + 1))
    counts = np.diff(begins)
    cuts = _cut_counts(counts, shares)
    below, above = begins[:-1, None] + cuts - 1, begins[:-1, None] + cuts
    last = len(ordered) - 1
    low = np.where(cuts > 0, ordered[below.clip(0, last)] + np.uint64(1), np.uint64(0))
    high = np.where(cuts < counts[:, None], ordered[above.clip(0, last)], np.uint64(_HASHES - 1))
    return np.clip(np.broadcast_to(plain, cuts.shape), low, high)


def _cut_counts(counts: npt.NDArray[np.int64], shares: Sequence[Fraction]) -> npt.NDArray[np.int64]:
    """Return the number of samples of each group before each cut, int64 [groups, parts - 1]."""
    cuts = np.empty((len(counts), len(shares) - 1), np.int64)
    end = Fraction(0)
    for part, share in enumerate(shares[:-1]):
        end += share
        numerator, denominator = end.limit_denominator(1 << 20).as_integer_ratio()
        cuts[:, part] = (2 * counts * numerator + denominator) // (2 * denominator)  # the nearest integer
    enough = counts >= len(shares)
    for part in range(cuts.shape[1]):  # at least one sample for each part before the cut
        least = cuts[:, part - 1] + 1 if part else 1
        cuts[enough, part] = np.maximum(cuts[:, part], least)[enough]
    for part in reversed(range(cuts.shape[1])):  # and after it
        most = cuts[:, part + 1] - 1 if part + 1 < cuts.shape[1] else counts - 1
        cuts[enough, part] = np.minimum(cuts[:, part], most)[enough]
    return cuts


def _load_split(path: str | os.PathLike[str], wanted: SavedSplit) -> dict[bytes, list[int]] | None:
    """Return the thresholds of the split saved at `path`, by class; None if there is no file.

    Raises LoaderError E-STATE for a file that is not a split, or a split with other settings than `wanted`.
    """
    try:
        with open(path, "rb") as file:
            saved = decode_json(file.read(), SavedSplit)
        if saved.format != _FORMAT:
            raise ValueError(f"its format is {saved.format!r}, not {_FORMAT!r}")
        for name in _SETTINGS:
            then, now = getattr(saved, name), getattr(wanted, name)
            if then != now:
                fix = f"pass {name}={then!r}, or save another split under another name"
                cause = f"the saved split has {name}={then!r}, but {now!r} was requested"
                raise LoaderError("E-STATE", cause, fix=fix, path=os.fspath(path))
        found = {
            name.encode("utf-8", "surrogateescape"): [int(text, 16) for text in texts]
            for name, texts in saved.thresholds.items()
        }
        for called, values in found.items():
            in_range = len(values) == len(saved.parts) - 1 and values[0] >= 0 and values[-1] < 1 << 64
            if not in_range or values != sorted(values):
                raise ValueError(f"the thresholds of {called!r} are invalid")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        fix = "pass another name, or remove the file"
        raise LoaderError("E-STATE", f"the split cannot be read: {error}", fix=fix, path=os.fspath(path)) from error
    return found
