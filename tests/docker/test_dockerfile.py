"""The Dockerfile: hadolint, and rules that hadolint does not have; nothing is built here."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TEXT = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text("utf-8")))  # one line per instruction
STAGES = {re.search(r"AS (\S+)", part)[1]: part for part in re.split(r"(?m)^(?=FROM )", TEXT)[1:]}  # type: ignore[index]


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert hadolint is not None, "hadolint is missing: `make setup` installs it"
    checked = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_every_build_installs_the_same_versions() -> None:
    bases = {re.match(r"FROM (\S+)", stage)[1] for stage in STAGES.values()}  # type: ignore[index]
    assert bases - set(STAGES) == {"scratch", "${BASE}"}
    assert re.search(r"(?m)^ARG BASE=[a-z]+:\w+-\d{8}[\w-]*@sha256:[0-9a-f]{64}$", TEXT)
    installs = [part for part in re.split(r"&&|\n", TEXT) if re.search(r"\bpip\b.* (install|wheel) ", part)]
    assert len(installs) > 5
    assert [p for p in installs if not re.search(r"-c constraints\.txt|==|--no-index --no-deps", p)] == []
    assert re.findall(r"\b(?:sudo|curl|wget|git clone)\b", TEXT) == []


@pytest.mark.parametrize(("image", "tools"), [("cpu", set()), ("gpu", {"g++", "python3-dev"})])  # for Triton
def test_images_run_as_any_user_and_contain_no_unneeded_compiler(image: str, tools: set[str]) -> None:
    made_by = STAGES["runtime"] + STAGES[image]
    assert re.findall(r"(?m)^USER (.*)$", made_by)[-1] == "10001:10001"
    assert re.findall(r"(?m)^(?:ENTRYPOINT|HEALTHCHECK) (.*)$", made_by) == ['["penstock"]']
    found = set(re.findall(r"(?<= )\S*\b(?:gcc|g\+\+|build-essential|python3-pip|make|\S+-dev)(?= )", made_by))
    assert {tool for tool in found if not tool.startswith("-")} == tools
    labels = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", made_by))
    assert labels == {"title", "description", "licenses", "version", "revision", "base.name"}


def test_version_label_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert re.findall(r"(?m)^ARG VERSION=(.+)$", TEXT) == [project["version"]] * 2


def test_context_contains_only_copied_files() -> None:
    """.dockerignore admits exactly the files that some COPY takes from the context."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    copied = {source for rest in re.findall(r"(?m)^COPY (?!--from=)(.*)$", TEXT) for source in rest.split()[:-1]}
    assert kept == copied
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="runs with the image's Python, which has tomllib")
def test_requirements_match_the_extras_of_the_package() -> None:
    extras = {"hdf5": ["b>=1"], "turbojpeg": ["c"], "dali-cuda120": ["d"], "dali-cuda130": ["e"]}
    image_requirements = runpy.run_path(str(ROOT / "docker" / "requirements.py"))["image_requirements"]
    project = {"dependencies": ["a"], "optional-dependencies": extras}
    assert image_requirements(project, "cpu") == ["a", "b>=1", "c"]
    assert image_requirements(project, "cuda12") == ["a", "b>=1", "c", "d"]
    assert image_requirements(project, "cuda13") == ["a", "b>=1", "c", "e"]


def test_the_build_argument_selects_one_cuda_for_torch_and_dali() -> None:
    """Its default is the CUDA of torch's usual wheels; a torch for another CUDA stops the build."""
    stage = STAGES["gpu-packages"]
    assert re.findall(r"(?m)^ARG CUDA=(.+)$", TEXT) == ["13"]
    assert 'requirements.py pyproject.toml "cuda${CUDA}"' in stage
    [check] = re.findall(r"python -c '(.*?)' \"\$\{CUDA\}\"", stage)
    for found, wanted, code in (("13.0", "13", 0), ("12.6", "12", 0), ("13.0", "12", 1), (None, "13", 1)):
        version = f"Of(version=Of(cuda={found!r}))"
        stand_in = f"import sys; from types import SimpleNamespace as Of; sys.modules['torch'] = {version}"
        command = [sys.executable, "-c", f"{stand_in}; {check}", wanted]
        assert subprocess.run(command, capture_output=True, check=False).returncode == code


def test_dali_of_both_cudas_has_one_pinned_version() -> None:
    """The newest version for the other CUDA may bring an nvImageCodec that crashes."""
    pins = dict(re.findall(r"(?m)^(nvidia-dali-cuda1[23]0)==(.+)$", (ROOT / "constraints.txt").read_text("utf-8")))
    assert len(pins) == 2
    assert len(set(pins.values())) == 1


def test_examples_on_a_gpu_let_triton_run_its_compiled_code() -> None:
    text = re.sub(r"\\\n\s*", "", (ROOT / "docker" / "README.md").read_text("utf-8"))
    runs = re.findall(r"(?m)^docker run .*--gpus.*$", text)
    assert len(runs) == 2
    assert all("--tmpfs /tmp:exec" in run for run in runs)
