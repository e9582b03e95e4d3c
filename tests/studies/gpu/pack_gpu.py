"""Packs everything that a GPU machine without a network lacks into build/gpu: `make pack-gpu`.

Wheels of packages, DALI for one GPU architecture and one Python, the native library, the commit, and some photos.
Device code of DALI for other architectures is overwritten with zeros, which compress to nothing; code for the CPU
stays. Decoders of other formats (JPEG 2000, TIFF, nvCOMP) are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import lzma
import re
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fat_binaries import PTX, find_codes

from penstock.bench.record.commit import ROOT, export_commit
from penstock.pipelines.native.library import LIBRARY

# Packages missing on a training machine that has torch, numpy, h5py, psutil, rich, typer, jinja2 and pytest.
WHEELS = ("simplejpeg", "msgspec", "isal", "filelock")
DALI_WHEELS = ("optree", "gast", "astunparse", "six")  # dependencies of DALI that torch does not install
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_KEEP = ("nvidia/dali", "nvidia/nvimgcodec", "nvidia/cu13/lib", "nvidia/__init__.py")
_DROP = re.compile(
    r"__pycache__|/include/|/test/|\.pyi$|opencv_ext|nvjpeg2k_ext|nvtiff_ext|libtiff_ext|/tools/|/examples/"
    r"|nvidia/dali/experimental/dynamic/.*\.so"
)
_DISTRIBUTIONS = ("nvidia_dali*", "nvidia_nvimgcodec*", "nvidia_nvjpeg-*")
IMAGES = (".jpg", ".jpeg")


def pinned_versions() -> dict[str, str]:
    """Return the versions of constraints.txt by name; for a package with several lines, those for newer Pythons."""
    found = re.findall(r"^([\w.-]+)==([^ ;\n]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {name.lower(): version for name, version in found}


def download(names: tuple[str, ...], python: str, to: Path) -> None:
    """Download a wheel of each package for another Python, without its dependencies."""
    to.mkdir(parents=True, exist_ok=True)
    versions = pinned_versions()
    platforms = [part for name in _PLATFORMS for part in ("--platform", name)]
    for name in names:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *platforms]
        command += ["--python-version", python, "--implementation", "cp", "-d", str(to), f"{name}=={versions[name]}"]
        subprocess.run(command, check=True)


def dali_files(packages: Path, tag: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of DALI that a GPU needs, and the metadata with the versions of its distributions."""
    for top in _KEEP:
        base = packages / top
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            name = path.relative_to(packages).as_posix()
            other = re.search(r"\.(cpython-\w+)-", name)
            if path.is_file() and not _DROP.search("/" + name) and not (other and other[1] != tag):
                yield name, path
    for pattern in _DISTRIBUTIONS:
        for info in sorted(packages.glob(f"{pattern}.dist-info")):
            for path in sorted(info.glob("METADATA")) + sorted(info.glob("WHEEL")):
                yield path.relative_to(packages).as_posix(), path


def without_others(path: Path, arch: int) -> bytes:
    """Return a file without device code for other architectures, if it is a library."""
    data = bytearray(path.read_bytes())
    if path.suffix == ".so" or ".so." in path.name:
        for code in find_codes(data):
            if code.kind == PTX or code.arch != arch:
                data[code.start : code.start + code.size] = bytes(code.size)
    return bytes(data)


def pack_dali(packages: Path, wheels: Path, out: Path, arch: int, tag: str) -> None:
    """Write DALI and its dependencies as one archive that unpacks into a folder of the module path."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]
    part = out.with_suffix(".part")
    with lzma.open(part, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        for name, path in dali_files(packages, tag):
            _add(archive, name, without_others(path, arch))
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as content:
                for name in content.namelist():
                    if not name.endswith("/"):
                        _add(archive, name, content.read(name))
    part.replace(out)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(data), 0o755 if ".so" in name else 0o644
    archive.addfile(about, io.BytesIO(data))


def copy_photos(photos: Path, most: int, to: Path) -> None:
    """Copy photos into four class folders, since a model needs labels; the folder's own classes are dropped."""
    shutil.rmtree(to, ignore_errors=True)
    found = [path for path in sorted(photos.rglob("*")) if path.suffix.lower() in IMAGES][:most]
    for number, path in enumerate(found):
        folder = to / str(number % 4)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / f"{number:04d}{path.suffix.lower()}")


def size_mib(out: Path) -> float:
    """Return the size of the tracked files and the packed ones."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True).stdout
    tracked = [ROOT / name.decode() for name in names.split(b"\0") if name]
    files = [path for path in (*tracked, *out.rglob("*")) if path.is_file()]
    return sum(path.stat().st_size for path in files) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu")
    parser.add_argument("--python", default="3.12", help="version of the GPU machine's Python")
    parser.add_argument("--arch", type=int, default=90, help="architecture of its GPU, such as 80, 90 or 120")
    parser.add_argument("--photos", type=Path, help="folder of photos to measure on; default: a demo set")
    parser.add_argument("--most-photos", type=int, default=40)
    parser.add_argument("--no-dali", action="store_true")
    given = parser.parse_args()
    shutil.rmtree(given.out / "wheels", ignore_errors=True)
    download(WHEELS, given.python, given.out / "wheels")
    if given.photos:
        copy_photos(given.photos, given.most_photos, given.out / "photos")
    if LIBRARY.exists():
        shutil.copyfile(LIBRARY, given.out / LIBRARY.name)
    archive, wheels = given.out / "dali.tar.xz", given.out.with_name("gpu-dali-wheels")
    if given.no_dali or importlib.util.find_spec("nvidia") is None:
        archive.unlink(missing_ok=True)
        print("pack-gpu: without DALI")
    else:
        shutil.rmtree(wheels, ignore_errors=True)
        download(DALI_WHEELS, given.python, wheels)
        pack_dali(
            Path(site.getsitepackages()[0]), wheels, archive, given.arch, f"cpython-{given.python.replace('.', '')}"
        )
    commit = export_commit(ROOT, given.out)
    print(f"pack-gpu: {given.out}, commit {commit}; {size_mib(given.out):.1f} MiB with the tracked files")


if __name__ == "__main__":
    main()
