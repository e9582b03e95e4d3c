"""Checks the installation: decoders and their speed, packages for caches, and DALI and torch against the driver."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from functools import partial

import torch

from penstock.bench.checks.finding import DoctorSettings, Finding, State
from penstock.bench.probe.ceilings.decode import usable_decoders
from penstock.bench.probe.data.demo_photo import plain_photo
from penstock.bench.record.clock import measure_rate
from penstock.bench.record.environment import package_version
from penstock.loaders.cache_build.hdf5_frame import hdf5_versions
from penstock.loaders.dali.dali_probe import CRASHING_CODEC, DALI_OF_EARLIER_CODEC
from penstock.loaders.dali.dali_versions import driver_cuda
from penstock.pipelines.batch import fused_check
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native import library as native
from penstock.pipelines.native.build import BuildError, compiler
from penstock.pipelines.sample.dali_graph import import_dali, install_hint
from penstock.pipelines.sample.decode import JPEG_DECODERS, ImageDecoder, choose_jpeg_decoder

_DECODE_S = 0.12  # seconds of measuring each decoder
_PHOTO = (400, 470)  # height, width: the mean of ImageNet's


def software_findings(settings: DoctorSettings) -> Iterator[Finding]:
    """Yield findings on versions and on packages missing for these settings."""
    yield Finding("python", "ok", f"{platform.python_version()}, torch {torch.__version__}")
    yield native_library()
    yield from decoders(settings)
    backend, _ = settings.resolved
    yield caches(needed=backend == "hdf5" or settings.cache is not None)
    yield gpu_driver(settings)
    if torch.version.cuda is not None:
        yield fused_kernels()
    yield dali(settings, needed=backend == "dali")


def native_library() -> Finding:
    """Check for the native library; without it images are decoded by the slower path."""
    loaded = native.native_library()
    if loaded is not None:
        return Finding("native library", "ok", f"loaded, {native.instructions(loaded)}")
    if os.environ.get(native.SWITCH) == "0":
        return Finding("native library", "warn", f"switched off by {native.SWITCH}=0: slower", f"unset {native.SWITCH}")
    why = "of another version" if native.LIBRARY.exists() else "not built"
    return Finding("native library", "warn", f"{why}: images are decoded by the slower path", native.CURE)


def fused_kernels() -> Finding:
    """Check for the needs of the batch stage's kernels; their results are checked at first use on a GPU."""
    name, slower = "fused kernels", "augmentations need more kernel launches"
    if fused_check.is_switched_off():
        return Finding(name, "warn", f"switched off by {fused_check.SWITCH}=0: {slower}", f"unset {fused_check.SWITCH}")
    version = package_version("triton")
    if version is None:
        return Finding(name, "warn", f"no Triton: {slower}", "install the triton that this torch was built with")
    try:
        compiler()
    except BuildError as error:
        return Finding(name, "warn", f"{error}: {slower}", "apt-get install gcc libc6-dev python3-dev")
    return Finding(name, "ok", f"Triton {version} and a C compiler")


def decoders(settings: DoctorSettings) -> Iterator[Finding]:
    """Yield version and speed of each JPEG decoder on a photo-like image, and whether unusual images can be decoded."""
    usable, photo = usable_decoders(), plain_photo(*_PHOTO)
    for name in JPEG_DECODERS:
        if name not in usable:
            yield _missing_decoder(name, usable)
            continue
        decoder = ImageDecoder(settings.pipeline, name)
        rate = measure_rate(partial(_decode, decoder, photo), seconds=_DECODE_S)
        sides = f"{_PHOTO[1]}x{_PHOTO[0]}"
        yield Finding(
            f"decoder {name}", "ok", f"{decoder.version()}: {rate.median:,.0f} images/s of {sides}, one thread"
        )
    if not usable:
        yield Finding("decoders", "fail", "no JPEG decoder works", "pip install simplejpeg")


def _decode(decoder: ImageDecoder, photo: bytes) -> int:
    decoder.full(photo)
    return 1


def _missing_decoder(name: str, usable: list[str]) -> Finding:
    try:
        choose_jpeg_decoder(name)
    except LoaderError as error:
        if name == "pillow":
            return Finding(f"decoder {name}", "warn", f"{error.cause}; PNG, CMYK and others need it", error.fix)
        return Finding(f"decoder {name}", "ok" if usable else "warn", f"not usable ({error.cause})", error.fix)
    return Finding(f"decoder {name}", "ok", "usable")


def caches(*, needed: bool) -> Finding:
    """Check for h5py, which reads caches, and for the native library, which cuts JPEGs into strips."""
    try:
        versions = hdf5_versions()
    except LoaderError as error:
        return Finding("caches", "fail" if needed else "warn", error.cause, error.fix)
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    if native.native_library() is not None:
        return Finding("caches", "ok", text)
    text += "; without the native library, JPEGs in caches are read and decoded whole"
    return Finding("caches", "warn", text, native.CURE)


def gpu_driver(settings: DoctorSettings) -> Finding:
    """Compare torch's CUDA version with the driver's."""
    driver, built = driver_cuda(), torch.version.cuda
    if driver is None:
        state: State = "warn" if built is not None and settings.device == "cpu" else "ok"
        text = "no GPU driver (libcuda.so.1)" + (f", torch is built for CUDA {built}" if built else "")
        fix = "for a GPU: install its driver, or start the container with --gpus all" if state == "warn" else None
        return Finding("GPU", state, text if built else f"{text}: everything runs on the CPU", fix)
    text = f"driver for CUDA {driver[0]}.{driver[1]}, torch for {built or 'the CPU'}"
    if built is None:
        return Finding("GPU", "warn", text, "this torch does not use GPUs: install a CUDA build")
    if not torch.cuda.is_available():
        return Finding("GPU", "warn", f"{text}: torch sees no device", "see nvidia-smi; the driver may be too old")
    names = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    return Finding("GPU", "ok", f"{text}; {torch.cuda.device_count()}x {', '.join(sorted(names))}")


def dali(settings: DoctorSettings, *, needed: bool) -> Finding:
    """Check for DALI: its wheel is built for one major version of CUDA, which the driver must support."""
    wheels = [wheel for wheel in ("nvidia-dali-cuda130", "nvidia-dali-cuda120") if package_version(wheel)]
    if not wheels:
        state: State = "fail" if needed else "ok"
        return Finding("DALI", state, "not installed", install_hint() if needed else None)
    if len(wheels) > 1:
        fix = f"they share a folder: pip uninstall both, then {install_hint()}"
        return Finding("DALI", "fail" if needed else "warn", " and ".join(wheels), fix)
    text, major, driver = f"{wheels[0]} {package_version(wheels[0])}", int(wheels[0][-3:-1]), driver_cuda()
    if needed:
        try:
            import_dali()
        except LoaderError as error:
            return Finding("DALI", "fail", f"{text}: {error.cause}", error.fix)
    if driver is None:
        return Finding("DALI", "ok", f"{text}; without a GPU driver it decodes on the CPU")
    if driver[0] < major:
        state = "fail" if needed and settings.device != "cpu" else "warn"
        fix = f"pip install nvidia-dali-cuda{max(12, driver[0])}0 instead, or a driver for CUDA {major}"
        return Finding("DALI", state, f"{text} is for CUDA {major}, the driver for {driver[0]}.{driver[1]}", fix)
    codec = package_version(f"nvidia-nvimgcodec-cu{major}") or ""
    if settings.device != "cpu" and codec.startswith(CRASHING_CODEC):
        text += f" with nvImageCodec {codec}, known to crash when it decodes regions of JPEGs on a GPU"
        return Finding("DALI", "warn", text, f"pip install {wheels[0]}=={DALI_OF_EARLIER_CODEC} (nvImageCodec 0.8)")
    return Finding("DALI", "ok", f"{text}, driver for CUDA {driver[0]}.{driver[1]}")
