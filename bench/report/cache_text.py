"""Describes a cache, its build, its check and its alternatives, in words and as JSON holds them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.loaders.cache_build.build import BuiltCache
from penstock.loaders.cache_build.verify import BadImage, CacheReport
from penstock.loaders.data.cache.format import About
from penstock.loaders.data.cache.shards import MANIFEST, shard_paths
from penstock.pipelines.errors import count_text, printable, size_text


def cache_files(path: Path) -> list[bytes]:
    """Return the files of a whole cache. Raises LoaderError E-CACHE."""
    name = os.fsencode(path)
    return shard_paths(name) if os.path.isdir(name) else [name]


def cache_record(path: Path, files: Sequence[bytes], abouts: Sequence[About]) -> dict[str, Any]:
    """Return what `penstock cache info --json` prints."""
    first = abouts[0]
    source_bytes, file_bytes = sum(about.source_bytes for about in abouts), sum(map(os.path.getsize, files))
    return {
        "path": printable(os.fsencode(path))[1:-1],
        "shards": len(abouts),
        "samples": sum(about.samples for about in abouts),
        "classes": len(first.classes),
        "encoding": first.encoding,
        "lossless": first.coded.lossless,
        "psnr_db": _mean_psnr(abouts),
        "file_bytes": file_bytes,
        "source_bytes": source_bytes,
        "ratio": round(file_bytes / source_bytes, 4) if source_bytes else None,
        "counts": _sum_tables([about.counts for about in abouts]),
        "kept": _sum_tables([about.kept for about in abouts]),
        "fingerprint": first.fingerprint,
        "source": first.source,
        "versions": first.versions,
    }


def describe_cache(path: Path, files: Sequence[bytes], abouts: Sequence[About], whose: str = "") -> str:
    """Write what a cache holds in a few lines; `whose` files they are where they are only a part of a set."""
    record = cache_record(path, files, abouts)
    built, of = record["shards"], abouts[0].shard[1]
    part = built < of
    shards = f" in {f'{built} of ' if part else ''}{of} shards" if of > 1 else ""
    lines = [
        f"{record['path']}: {whose if part else ''}{count_text(record['samples'], 'image')}, "
        f"{count_text(record['classes'], 'class')}{shards} ({abouts[0].coded.describe()})",
        f"  {size_text(record['file_bytes'])}, {record['ratio'] or 0:.3f} times its source "
        f"({size_text(record['source_bytes'])})",
        f"  {_counts_text(record['counts'])}",
    ]
    if record["kept"]:
        counts = sorted(record["kept"].items(), key=lambda item: -item[1])
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts)
        lines.append(f"  JPEGs without restart markers, which are read whole: {reasons}")
    if record["counts"].get("bad"):
        lines.append(
            f"  {count_text(record['counts']['bad'], 'bad image')}, stored as it was: reading it names its fault"
        )
    if not record["lossless"]:
        psnr = record["psnr_db"]
        lines.append("  lossy" + (f": PSNR {psnr:.1f} dB against the source" if psnr is not None else ""))
    return "\n".join(lines)


def describe_build(built: BuiltCache) -> str:
    """Write what a build made, for the end of its command."""
    encoded, seconds = sum(file.built for file in built.files), sum(file.seconds for file in built.files)
    resumed = sum(file.resumed for file in built.files)
    path = Path(os.fsdecode(built.path))
    lines = []
    if built.files:
        # Of a set, the files that this process saw to: others may build theirs still.
        files, abouts = [file.path for file in built.files], [file.about for file in built.files]
        lines.append(describe_cache(path, files, abouts, "this process: "))
    if not any(file.seconds for file in built.files):
        lines.append("  nothing to do: it was built already, of this source with these settings")
    else:
        taken_up = f"; {resumed:,} were there from a build that was stopped" if resumed else ""
        lines.append(f"  built {encoded:,} images in {seconds:,.1f} s: {encoded / seconds:,.0f} images/s{taken_up}")
    if not built.complete:
        lines.append(f"  not complete: {MANIFEST.decode()} is written when the last shard is there")
    return "\n".join(lines)


def findings_record(reports: Sequence[CacheReport]) -> dict[str, Any]:
    """Return what `penstock cache verify --json` prints."""

    def list_findings(findings: Iterable[BadImage]) -> list[dict[str, Any]]:
        return [{"sample": f.sample, "name": printable(f.name)[1:-1], "cause": f.cause} for f in findings]

    return {
        "samples": reports[0].samples,
        "bytes": reports[0].num_bytes,
        "kinds": reports[0].kinds,
        "stale": " ".join(report.stale for report in reports if report.stale),
        "sound": all(report.sound for report in reports),
        "damaged": list_findings(finding for report in reports for finding in report.damaged),
        "differing": list_findings(finding for report in reports for finding in report.differing),
    }


def _counts_text(counts: dict[str, int]) -> str:
    words = {
        "strips": "as JPEGs in strips",
        "file": "as the files they were",
        "pixels": "as pixels",
    }
    return "stored " + (", ".join(f"{counts[name]:,} {text}" for name, text in words.items() if counts.get(name)))


def _mean_psnr(abouts: Sequence[About]) -> float | None:
    known = [about.psnr_db for about in abouts if about.psnr_db is not None]
    return round(sum(known) / len(known), 3) if known else None


def _sum_tables(tables: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: sum(table.get(name, 0) for table in tables) for name in names}
