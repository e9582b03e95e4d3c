"""The doctor: missing resources in the loaders' words, unusual files, drivers, file systems, and runs under limits."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg
import typer
from constrained import Limit, few_files, memory_cap, no_home, run, small_shm
from mounts import needs_mounts
from odd_images import exif_segment, png, scene
from photo_folder import photo
from PIL import Image
from repaired_jpegs import cut

from penstock.bench.checks import doctor_folders, doctor_machine, doctor_software
from penstock.bench.checks.doctor import ensure_loader_fits, examine
from penstock.bench.checks.doctor_data import data_findings, odd_files, summarise_sample
from penstock.bench.checks.doctor_folders import file_system_of, folder_findings, is_remote
from penstock.bench.checks.doctor_machine import machine_findings
from penstock.bench.checks.doctor_software import decoders
from penstock.bench.checks.finding import DoctorSettings, Finding
from penstock.bench.commands.doctor import doctor
from penstock.loaders import LoaderError, create_loader
from penstock.loaders.data.foreign_data import cure_of_missing
from penstock.loaders.data.requests import request_retries
from penstock.loaders.front.open_source import open_source
from penstock.loaders.run.workers import needs as preflight
from penstock.loaders.system import machine
from penstock.pipelines import imagenet_train
from penstock.pipelines.batch import fused_check
from penstock.pipelines.native import library as native

SMALL = DoctorSettings(workers=2, batch_size=4, size=16)
CLI = (sys.executable, "-m", "penstock.bench.cli")


def machine_of(settings: DoctorSettings) -> dict[str, Finding]:
    return {finding.name: finding for finding in machine_findings(settings, settings.needs())}


# ---- machine ----


LACKS: dict[str, tuple[Any, str, Any]] = {
    "open files": (machine.resource, "getrlimit", lambda _: (20, 20)),
    "memory": (machine, "memory_headroom", lambda: 1000),
    "processes": (preflight, "process_headroom", lambda: 5),
    "/dev/shm": (preflight, "DEV_SHM", "/dev/shm/absent"),
}


@pytest.mark.parametrize("name", LACKS)
def test_doctor_and_loader_report_the_same_missing_resource(
    name: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_of(SMALL)[name].state == "ok"
    monkeypatch.setattr(*LACKS[name])
    found = machine_of(SMALL)
    assert [finding.name for finding in found.values() if finding.state == "fail"] == [name]
    loader = create_loader(photos, pipeline=imagenet_train(16), batch_size=4, workers=2, workers_are="processes")
    with loader, pytest.raises(LoaderError) as caught:
        next(iter(loader))
    assert caught.value.exit_code == 7
    assert found[name].fix == caught.value.fix
    of_the_doctor, of_the_loader = (
        text.replace("semaphores of the workers' queues", "semaphores")
        for text in (found[name].found, caught.value.cause)
    )
    assert of_the_doctor.split(" need=")[0] == of_the_loader.split(" need=")[0]
    with pytest.raises(LoaderError, match=caught.value.code):
        ensure_loader_fits(SMALL, 0)


def test_workers_are_compared_with_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "cgroup_cpu_quota", lambda: None)
    many = machine_of(DoctorSettings(workers=10_000, batch_size=1, size=1))["processors"]
    assert (many.state, many.fix) == ("warn", f"--workers {machine.available_cpus()}")
    monkeypatch.setattr(doctor_machine, "cgroup_cpu_quota", lambda: 0.5)
    quota = machine_of(SMALL)["processors"]
    assert quota.state == "warn"
    assert "quota 0.5" in quota.found


def test_memory_that_leaves_little_for_the_model_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    need = SMALL.needs().total_bytes
    for module in (machine, doctor_machine):
        monkeypatch.setattr(module, "memory_headroom", lambda: int(1.5 * need))
    assert machine_of(SMALL)["memory"].state == "warn"
    for module in (machine, doctor_machine):
        monkeypatch.setattr(module, "memory_headroom", lambda: 3 * need)
    assert machine_of(SMALL)["memory"].state == "ok"


@pytest.mark.parametrize(("nodes", "state"), [((0,), "ok"), ((0, 1), "warn")])
def test_a_process_on_two_nodes_is_advised_to_bind_to_its_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: tuple[int, ...], state: str
) -> None:
    for node in (0, 1):
        (tmp_path / f"node{node}").mkdir()
    for node in nodes:
        (tmp_path / f"node{node}" / f"cpu{node}").mkdir()
    monkeypatch.setattr(doctor_machine, "_NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = doctor_machine.numa_nodes(DoctorSettings(device="cuda"))
    assert (found.state, found.found) == (state, f"2, running on {', '.join(map(str, nodes))}")
    assert doctor_machine.numa_nodes(DoctorSettings()).state == "ok"


# ---- folders ----


def test_unwritable_folders_are_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert [finding.state for finding in folder_findings()] == ["ok", "ok", "ok"]
    monkeypatch.setattr(doctor_folders, "can_write", lambda folder: False)
    temporary, profile, index = folder_findings()
    assert (temporary.state, profile.state, index.state) == ("ok", "warn", "warn")
    monkeypatch.setattr(doctor_folders, "file_system_of", lambda folder: "nfs4")
    assert "export TMPDIR" in (next(folder_findings()).fix or "")


def test_file_system_is_that_of_the_innermost_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    table = tmp_path / "self" / "mounts"
    table.parent.mkdir()
    table.write_text(
        "/dev/vda / ext4 rw,relatime 0 0\n"
        "server:/data /data nfs4 rw 0 0\n"
        "host: /data/my\\040set fuse.sshfs rw 0 0\n"
        "overlay /over overlay rw 0 0\n"
        "o2ib /over lustre rw 0 0\n"
    )
    for path, kind, remote in (
        ("/data", "nfs4", True),
        ("/data/train/x.jpg", "nfs4", True),
        ("/database", "ext4", False),
        ("/data/my set/a", "fuse.sshfs", True),
        ("/over/a", "lustre", True),
        ("/elsewhere", "ext4", False),
    ):
        assert (file_system_of(path), is_remote(kind)) == (kind, remote)
    table.unlink()
    assert file_system_of("/") == "unknown"


# ---- software ----


@pytest.mark.parametrize(
    ("wheel", "codec", "driver", "device", "state", "fix"),
    [
        ("nvidia-dali-cuda130", "0.8.0.22", (13, 0), "cuda", "ok", ""),
        ("nvidia-dali-cuda130", "0.8.0.22", (12, 8), "cuda", "fail", "nvidia"),
        ("nvidia-dali-cuda130", "0.8.0.22", (12, 8), "cpu", "warn", "nvidia"),
        ("nvidia-dali-cuda120", "0.8.0.22", (13, 0), "cuda", "ok", ""),
        ("nvidia-dali-cuda120", "0.8.0.22", (12, 2), "cuda", "ok", ""),
        ("nvidia-dali-cuda120", "0.8.0.22", None, "cpu", "ok", ""),
        (None, None, None, "cpu", "fail", "pip install"),
        ("nvidia-dali-cuda130", "0.9.0.20", (13, 0), "cpu", "ok", ""),
        # known to crash GPUs
        ("nvidia-dali-cuda130", "0.9.0.20", (13, 0), "cuda", "warn", "pip install nvidia-dali-cuda130==2.2.0 (nv"),
    ],
)
def test_dali_is_compared_with_the_driver(
    monkeypatch: pytest.MonkeyPatch, wheel, codec, driver, device, state, fix
) -> None:
    versions = {wheel: "2.4.0", "nvidia-nvimgcodec-cu13": codec}
    monkeypatch.setattr(doctor_software, "package_version", versions.get)
    monkeypatch.setattr(doctor_software, "driver_cuda", lambda: driver)
    monkeypatch.setattr(doctor_software, "import_dali", lambda: None)
    found = doctor_software.dali(DoctorSettings(backend="dali", device=device), needed=True)
    assert found.state == state
    assert fix in (found.fix or "")
    assert (found.fix is None) == (state == "ok")


def test_the_native_library_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(native.SWITCH, raising=False)
    library = SimpleNamespace(pn_has_avx2=lambda: 1)
    monkeypatch.setattr(native, "native_library", lambda: library)
    assert doctor_software.native_library()[1:] == ("ok", "loaded, AVX2", None)
    library.pn_has_avx2 = lambda: 0
    assert doctor_software.native_library()[1:] == ("ok", "loaded, generic C", None)
    monkeypatch.setattr(native, "native_library", lambda: None)
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "lib.so")
    missing = doctor_software.native_library()
    assert (missing.state, missing.found.partition(":")[0], missing.fix) == ("warn", "not built", native.CURE)
    native.LIBRARY.touch()
    assert doctor_software.native_library().found.startswith("of another version:")
    monkeypatch.setenv(native.SWITCH, "0")
    assert doctor_software.native_library().fix == f"unset {native.SWITCH}"


def test_fused_kernels_need_triton_and_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fused_check.SWITCH, raising=False)
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(doctor_software, "package_version", lambda name: "3.7.1")
    assert doctor_software.fused_kernels()[1:] == ("ok", "Triton 3.7.1 and a C compiler", None)
    monkeypatch.setenv("CC", "no-such-compiler")
    found = doctor_software.fused_kernels()
    assert (found.state, found.found.partition(":")[0]) == ("warn", "no C compiler")
    monkeypatch.setattr(doctor_software, "package_version", lambda name: None)
    assert doctor_software.fused_kernels().found.startswith("no Triton")
    monkeypatch.setenv(fused_check.SWITCH, "0")
    assert doctor_software.fused_kernels().fix == f"unset {fused_check.SWITCH}"


def test_kernels_are_checked_only_for_a_torch_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for built in (None, "13.0"):
        monkeypatch.setattr(doctor_software.torch.version, "cuda", built)
        names = [finding.name for finding in doctor_software.software_findings(SMALL)]
        assert ("fused kernels" in names) == (built is not None)


@pytest.mark.parametrize(
    ("library", "state", "found"), [("lib", "ok", "1.0"), (None, "warn", "JPEGs in caches are read and decoded whole")]
)
def test_requirements_of_caches(library, state, found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "native_library", lambda: library)
    monkeypatch.setattr(doctor_software, "hdf5_versions", lambda: {"h5py": "1.0"})
    finding = doctor_software.caches(needed=True)
    assert (finding.state, finding.found.endswith(found)) == (state, True)
    assert (finding.fix is not None) == (state == "warn")


def test_a_missing_decoder_is_reported_and_no_decoder_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_turbojpeg(name: str) -> Any:
        raise LoaderError("E-DEPENDENCY", f"{name} is not there", fix=f"pip install {name}")

    monkeypatch.setattr(doctor_software, "choose_jpeg_decoder", without_turbojpeg)
    monkeypatch.setattr(doctor_software, "usable_decoders", lambda: ["simplejpeg"])
    simple, turbo, pillow = decoders(SMALL)
    assert [simple.state, turbo.state, pillow.state] == ["ok", "ok", "warn"]
    assert "images/s" in simple.found
    assert "PNG" in pillow.found
    monkeypatch.setattr(doctor_software, "usable_decoders", list)
    assert list(decoders(SMALL))[-1].state == "fail"


# ---- data ----


def test_unusual_files_of_a_sample_are_reported(tmp_path: Path) -> None:
    whole, rgb = photo(1), scene(40, 60)
    (tmp_path / "ok.jpg").write_bytes(whole)
    (tmp_path / "named.jpg").write_bytes(png(rgb, depth=8, colour=2))
    (tmp_path / "turned.jpg").write_bytes(whole[:2] + exif_segment(6) + whole[2:])
    Image.fromarray(rgb).convert("CMYK").save(tmp_path / "inks.jpg")
    huge = simplejpeg.encode_jpeg(np.zeros((4000, 5100, 3), np.uint8), 50, "RGB", "420")
    (tmp_path / "huge.jpg").write_bytes(huge)
    (tmp_path / "repaired.jpg").write_bytes(cut(whole, 0.5))
    settings = DoctorSettings()
    sample = summarise_sample(open_source(tmp_path), settings)
    assert (sample.images, sample.bad) == (6, {})
    assert {Path(path.decode()).stem for path in sample.first.values()} == {
        *("named", "turned", "inks", "huge", "repaired")
    }
    assert sample.odd["repaired by libjpeg"] == 1
    found = odd_files("data", open_source(tmp_path), settings)
    assert found.state == "warn"
    assert "exif='apply'" in (found.fix or "")
    assert "on_repaired='replace'" in (found.fix or "")
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    source = open_source(tmp_path, rescan=True)
    broken = odd_files("data", source, settings)
    assert broken.state == "fail"
    assert "1 E-TRUNC" in broken.found
    assert "cut.jpg" in broken.found
    assert odd_files("data", source, DoctorSettings(on_bad_sample="replace")).state == "warn"


def test_the_command_prints_and_writes_all_findings(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "doctor.json"
    doctor(photos, workers=1, batch_size=4, size=16, json_file=record)
    found = {finding["name"]: finding for finding in json.loads(record.read_text())["findings"]}
    printed = capsys.readouterr().out
    assert {"memory", "open files", "decoder simplejpeg", "data: file system", "data: reading"} <= set(found)
    assert len(found) == printed.count("\n") - 1 - printed.count("-> ")
    assert "40 images decoded, none of them unusual" in found["data: a sample"]["found"]
    monkeypatch.setattr(*LACKS["open files"])
    with pytest.raises(typer.Exit) as caught:
        doctor(workers=1, batch_size=4, size=16)
    assert caught.value.exit_code == 7
    assert "fail  open files" in capsys.readouterr().out
    for wrong in ({"backend": "tf"}, {"on_bad_sample": "skip"}):
        with pytest.raises(ValueError, match="must be"):
            doctor(**wrong)


def test_missing_data_fails(tmp_path: Path) -> None:
    found = [finding for finding in examine(SMALL, tmp_path / "absent") if finding.name == "data"]
    assert [(finding.state, finding.fix) for finding in found] == [
        ("fail", cure_of_missing(os.fsencode(tmp_path / "absent")))
    ]


@pytest.mark.parametrize(("on_bad_sample", "state"), [("raise", "fail"), ("replace", "warn")])
def test_missing_files_of_a_list_are_reported(tmp_path: Path, on_bad_sample: str, state: str) -> None:
    """Three of 2,000 files are missing, but not in a sample of 256."""
    rows = []
    for number in range(2000):
        place = tmp_path / f"{number:04d}.jpg"
        if number not in (1, 7, 1999):
            place.write_bytes(photo(0))
        rows.append(f"{place.name},{number % 2}")
    table = tmp_path / "list.csv"
    table.write_text("\n".join(["image,label", *rows]))
    settings = DoctorSettings(workers=0, batch_size=4, size=16, on_bad_sample=on_bad_sample)
    found = {finding.name: finding for finding in data_findings(settings, str(table))}
    assert found["data"].state == state
    assert "2,000 images" in found["data"].found
    assert f"3 of 2,000 files do not exist, the first is '{tmp_path}/0001.jpg'" in found["data"].found
    part = DoctorSettings(workers=0, batch_size=4, size=16, data_options={"subset": "10:100"})
    assert next(data_findings(part, str(table))).state == "warn"  # printed although irrelevant for this part


def test_warnings_while_opening_the_data_are_findings(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(photo(0))
    table = tmp_path / "list.csv"
    table.write_text("image,label\na/1.jpg,0\na/2.jpg,1\n")
    found = next(data_findings(DoctorSettings(on_bad_sample="replace"), str(table)))
    assert (found.state, found.fix is not None) == ("warn", True)


def test_bad_images_do_not_count_as_decoded(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(photo(0)[: 100 if number == 2 else None])
    assert odd_files("data", open_source(tmp_path), DoctorSettings()).found.startswith("3 of 4 images decoded; 1 E-")


def test_a_signature_in_a_url_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.01)
    (found,) = data_findings(DoctorSettings(), "http://me:word@127.0.0.1:9/a.parquet?sig=key")
    assert found.state == "fail"
    assert found.found.startswith("http://127.0.0.1:9/a.parquet: ")
    assert not {"key", "word"} & set(re.findall("[a-z]+", f"{found.found} {found.fix}"))


# ---- under limits, for real ----


@needs_mounts
def test_one_run_under_many_limits_reports_a_fix_for_each(photos: Path) -> None:
    """A /dev/shm of 8 MB, 128 open files and no HOME: 8 workers are too many, 0 are fine."""
    shm, files, home = small_shm(), few_files(), no_home()
    limit = Limit((*shm.prefix, *files.prefix), home.without)
    done = run(limit, (*CLI, "doctor", "--workers", 8))
    assert done.code == 7, done.output + done.errors
    lines = done.output.splitlines()
    fails = [number for number, line in enumerate(lines) if line.startswith("fail")]
    assert [lines[number].split()[1:3] for number in fails] == [["open", "files"]]
    assert "ulimit -n 4096" in lines[fails[0] + 1]
    warned = " ".join(line for line in lines if line.startswith("warn"))
    assert "/dev/shm need=" in warned


def test_commands_fail_before_they_are_killed_for_memory(photos: Path) -> None:
    with memory_cap(400) as limit:
        if limit is None:
            pytest.skip("no control group may be made here")
        done = run(limit, (*CLI, "bench", photos, "--batch-size", 8, "--workers", 1))
    assert done.code == 7, done.errors
    assert "LoaderError[E-MEM]" in done.last_error
    assert "docker --memory" in done.last_error
