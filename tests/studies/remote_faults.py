"""Reads data from faulty servers of about forty kinds, and prints what came of it.

`python remote_faults.py --json FILE` takes about three minutes: every kind is a process of its own, with a server of
its own and two epochs of images that are compared with the truth, byte by byte. `--tree before=FOLDER --tree
after=FOLDER` compares packages: FOLDER contains `penstock`. The outcomes:

    served   every image once per epoch, each of them right
    refused  ended with a LoaderError within 10 s
    ended    ended with a LoaderError later
    WRONG    images were wrong, missing or served twice
    crashed  ended with another exception
    hangs    did not end in time

faulty_kinds.py says which of them are right for each kind, and for an error which word names the cause.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from faulty_kinds import KINDS, PER_TAR, SECRET, Kind
from faulty_server import Web
from PIL import Image

from penstock.bench.record.environment import describe_environment
from penstock.loaders import LoaderError, LoaderOptions, create_loader
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import ImagePipeline

SIDE, CLASSES, RETRY_S, AT_ONCE_S, LIMIT_S = 48, 4, 120, 10, 200


def encode(image: np.ndarray[Any, Any], size: int) -> bytes:
    """Return a JPEG of `size` bytes, filled up by a comment; loaders decode it as Pillow does, to the bit."""
    jpeg = io.BytesIO()
    Image.fromarray(image).save(jpeg, "JPEG", quality=90, subsampling=0)
    data = jpeg.getvalue()
    room = size - len(data) - 4
    assert 0 <= room < 1 << 16, f"{len(data)} bytes do not fit into {size}"
    return data[:2] + b"\xff\xfe" + (room + 2).to_bytes(2, "big") + bytes(room) + data[2:]


def make_files(samples: int, side: int, seed: int = 0) -> tuple[dict[str, bytes], np.ndarray[Any, Any]]:
    """Return tars, and images in class folders, of the same noise; and the pixels. All images have one length."""
    noise = np.random.default_rng(seed).integers(0, 256, (samples, side, side, 3), dtype=np.uint8)
    photos = [encode(image, 3 * side * side + 2000) for image in noise]
    truth = np.stack([np.asarray(Image.open(io.BytesIO(photo))) for photo in photos])
    files = dict[str, bytes]()
    tars = samples // PER_TAR
    for tar in range(tars):
        text = io.BytesIO()
        with tarfile.open(fileobj=text, mode="w") as members:
            for index in range(tar * samples // tars, (tar + 1) * samples // tars):
                label = index * CLASSES // samples
                files[f"/data/photos/c{label}/{index:04d}.jpg"] = photos[index]
                for suffix, data in (("jpg", photos[index]), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{index:04d}.{suffix}")
                    member.size = len(data)
                    members.addfile(member, io.BytesIO(data))
        files[f"/data/{tar}.tar"] = text.getvalue()
    return files, truth


def compare(loader: Any, truth: np.ndarray[Any, Any], epoch: int) -> str:
    """Serve an epoch; return what is wrong with it, or an empty text."""
    seen = np.zeros(len(truth), np.int64)
    num_wrong = 0
    for images, labels, index in loader:
        got, where = images.permute(0, 2, 3, 1).numpy(), index.numpy()
        seen += np.bincount(where, minlength=len(truth))
        right = (got == truth[where]).all((1, 2, 3)) & (labels.numpy() == where * CLASSES // len(truth))
        num_wrong += int((~right).sum())
    if num_wrong or (seen != 1).any():
        return f"epoch {epoch}: {num_wrong} wrong, {(seen == 0).sum()} missing, {(seen > 1).sum()} served twice"
    return ""


def serve(kind: Kind, folder: Path) -> dict[str, Any]:
    """Read the data of a faulty server in this process."""
    settings = {"requests": 8, "bytes_ahead": 1 << 16, "workers": 2, "workers_are": "threads", **kind.settings}
    settings.setdefault("shuffle", True)
    side = settings.pop("side", SIDE)
    files, truth = make_files(kind.samples, side)
    web = Web(files, kind.fault, **kind.web)
    web.other = make_files(kind.samples, side, seed=1)[0]
    web.start(folder if kind.tls else None)
    names = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    os.environ.update(names, AWS_ENDPOINT_URL=web.url, AWS_ALLOW_HTTP="true", XDG_CACHE_HOME=str(folder / "cache"))
    if "local_cache" in settings:
        settings["local_cache"] = folder / "copy"
    if "retry_s" in LoaderOptions.__annotations__:
        settings["retry_s"] = RETRY_S
    pipeline = ImagePipeline(size=(side, side), crop="full", flip=0.0)
    url = kind.data if "://" in kind.data else web.url + kind.data
    url = url.replace("{0..1}", f"{{0..{kind.samples // PER_TAR - 1}}}")
    loader, begin, fault = None, time.monotonic(), ""
    result: dict[str, Any] = {"outcome": "served"}
    try:
        loader = create_loader(
            url, pipeline=pipeline, batch_size=8, dtype=torch.uint8, with_index=True, drop_last=False, **settings
        )
        web.running = True
        for epoch in range(1 if web.bytes_per_s else 2):
            fault = fault or compare(loader, truth, epoch)
        if len(loader.dataset) != len(truth):
            fault = f"{len(loader.dataset)} of {len(truth)} samples"
    except LoaderError as error:
        result = {"outcome": "ended", "error": str(error)}
    except Exception as error:
        result = {"outcome": "crashed", "error": f"{type(error).__name__}: {error}"}
    if fault:
        result |= {"outcome": "WRONG", "error": fault}
    result |= {"seconds": round(time.monotonic() - begin, 1), "requests": web.number}
    if web.bytes_per_s:
        size = sum(len(data) for name, data in files.items() if name.endswith(".tar"))
        result["bytes_of_data"] = round(web.num_bytes / size, 2)
    return result


def run_one(kind: Kind, pipe: Any) -> None:
    """Serve a kind and send the result."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = serve(kind, Path(folder))
        result["warnings"] = sorted({str(one.message) for one in seen if one.category in (UserWarning, RuntimeWarning)})
        pipe.send(result)
    os._exit(0)  # requests that hang would be waited for


def judge(kind: Kind, result: dict[str, Any]) -> None:
    """Complete a result by whether it is right."""
    text = result.get("error", "")
    age_s = result["seconds"]
    if result["outcome"] == "ended" and age_s <= AT_ONCE_S:
        result["outcome"] = "refused"
    named = not kind.words or result["outcome"] == "served" or re.search(kind.words, text, re.IGNORECASE) is not None
    leaked = SECRET in text or any(SECRET in one for one in result["warnings"])
    result["right"] = result["outcome"] in kind.right and named and not leaked and result.get("bytes_of_data", 1) < 1.1
    result["cause_named"], result["secret_shown"] = named, leaked


def run_all(kinds: list[Kind]) -> dict[str, Any]:
    """Run all kinds at the same time, in processes that share the imports of this one."""
    context = multiprocessing.get_context("fork")
    running = {}
    for kind in kinds:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run_one, args=(kind, theirs))
        process.start()
        theirs.close()
        running[kind.name] = (kind, process, ours, time.monotonic())
    found = dict[str, Any]()
    for name, (kind, process, pipe, begin) in running.items():
        result: dict[str, Any] = {"outcome": "hangs", "seconds": LIMIT_S, "warnings": []}
        if pipe.poll(max(0.0, begin + LIMIT_S - time.monotonic())):
            try:
                result = pipe.recv()
            except EOFError:
                result = {"outcome": "crashed", "seconds": 0.0, "warnings": [], "error": "the process died"}
        process.kill()
        judge(kind, result)
        found[name] = result
    return found


def run_tree(folder: str, only: str) -> subprocess.Popen[str]:
    """Start this program with another package."""
    command = [sys.executable, __file__, "--raw", "--only", only]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": folder})


def print_table(found: dict[str, dict[str, Any]]) -> None:
    """Print a row per kind and a column per package; ! marks what is not right."""
    print("| the server | right is | " + " | ".join(found) + " |\n|---|---|" + "---|" * len(found))
    for kind in KINDS:
        cells = []
        for results in found.values():
            if (one := results.get(kind.name)) is None:
                continue
            text = re.sub(r".*?cause=", "", one.get("error", ""), count=1)[:110].replace("|", "/").replace("\n", " ")
            share = f", {one['bytes_of_data']} times the bytes" if "bytes_of_data" in one else ""
            mark = "" if one["right"] else "! "
            cells.append(f"{mark}{one['outcome']}, {one['seconds']:.0f} s{share} {text}".strip())
        if cells:
            print(f"| {kind.name} | {' or '.join(sorted(kind.right))} | " + " | ".join(cells) + " |")
    for name, results in found.items():
        print(f"{name}: {sum(one['right'] for one in results.values())} of {len(results)} kinds are right")


def main(
    tree: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER that contains a package penstock.")] = None,
    only: Annotated[str, typer.Option(help="Kinds whose name contains this.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the record.")] = None,
    raw: Annotated[bool, typer.Option("--raw", hidden=True)] = False,
) -> None:
    """Run the kinds and print the table."""
    kinds = [kind for kind in KINDS if only in kind.name]
    if raw:
        print(json.dumps(run_all(kinds)))
        return
    started = {name: run_tree(folder, only) for name, _, folder in (one.partition("=") for one in tree or [])}
    found = {name: json.loads(process.communicate()[0]) for name, process in started.items()}
    found = found or {"here": run_all(kinds)}
    print_table(found)
    if json_file is not None:
        write_json(json_file, {"machine": describe_environment("cpu"), "kinds": found})


if __name__ == "__main__":
    typer.run(main)
