"""The Dockerfile: hadolint, and what hadolint does not know; nothing is built here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
FOR_TRITON = {"cpu": set[str](), "gpu": {"g++", "python3-dev"}}  # it compiles its kernels when first used


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, arguments) of each instruction, comments left out and continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.strip().split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(name.upper(), re.sub(r"\s+", " ", rest)) for name, rest in pairs]


def stages(text: str) -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name, FROM included; those before the first FROM under ''."""
    found: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for instruction, rest in instructions(text):
        if instruction == "FROM":
            name = rest.partition(" AS ")[2] or rest
            found[name] = []
        found[name].append((instruction, rest))
    return found


def lineage(all_stages: dict[str, list[tuple[str, str]]], target: str) -> list[tuple[str, str]]:
    """The instructions that make an image: those of the stages it starts from, then its own."""
    base = all_stages[target][0][1].partition(" AS ")[0]
    inherited = lineage(all_stages, base) if base in all_stages else []
    return inherited + all_stages[target]


def findings(text: str) -> list[str]:
    """What keeps the images of a Dockerfile from being repeated, small, or safe to run as anyone."""
    all_stages = stages(text)
    found = _unpinned_bases(all_stages)
    for target in ("cpu", "gpu"):
        found += [f"{target}: {line}" for line in _image_findings(lineage(all_stages, target), FOR_TRITON[target])]
    for name, rest in instructions(text):
        if name == "RUN" and "apt-get" in rest:
            found += _apt_findings(rest)
        if name == "RUN":
            found += [f"any version: {command}" for command in rest.split(" && ") if _is_free_of_versions(command)]
        if name == "RUN" and re.search(r"\b(sudo|curl|wget|git clone)\b", rest):
            found.append(f"fetched or raised by hand: {rest}")
        if name == "WORKDIR" and not rest.startswith("/"):
            found.append(f"WORKDIR {rest} is relative")
        if name == "ADD":
            found.append(f"ADD {rest}: COPY does not unpack or fetch")
    return found


def _is_free_of_versions(command: str) -> bool:
    installs = re.search(r"\bpip\b.* (install|wheel) ", command)
    return bool(installs) and not re.search(r"-c constraints\.txt|==|--no-index --no-deps", command)


def _unpinned_bases(all_stages: dict[str, list[tuple[str, str]]]) -> list[str]:
    defaults = dict(rest.partition("=")[::2] for name, rest in all_stages[""] if name == "ARG")
    found = []
    for stage in list(all_stages.values())[1:]:
        base = stage[0][1].partition(" AS ")[0]
        base = re.sub(r"^\$\{(\w+)\}$", lambda argument: defaults.get(argument[1], ""), base)
        if base not in ("scratch", *all_stages) and not re.fullmatch(
            r"[a-z]+:\w+-\d{8}[\w-]*@sha256:[0-9a-f]{64}", base
        ):
            found.append(f"base {base!r} is not a name without a host, a dated tag and a digest")
    return found


def _image_findings(made_by: list[tuple[str, str]], wanted_tools: set[str]) -> list[str]:
    last = dict(made_by)
    found = []
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", last.get("USER", "")):
        found.append("USER is not a number other than 0")
    if last.get("ENTRYPOINT") != '["penstock"]':
        found.append("ENTRYPOINT is not penstock in exec form")
    if "HEALTHCHECK" in last:
        found.append("a job has no health to ask for")
    commands = " ".join(rest for name, rest in made_by if name == "RUN")
    compilers = r"\S*\b(gcc|g\+\+|build-essential|python3-pip|make|\S+-dev)"
    tools = {tool[0] for tool in re.finditer(rf"(?<= ){compilers}(?= )", commands)}
    found += [f"{tool} in the final stage, or missing" for tool in sorted(tools ^ wanted_tools)]
    labels = " ".join(rest for name, rest in made_by if name == "LABEL")
    wanted = ("title", "description", "licenses", "version", "revision", "base.name")
    return found + [f"no label {name}" for name in wanted if f"org.opencontainers.image.{name}=" not in labels]


def _apt_findings(command: str) -> list[str]:
    wanted = {
        "update and install in one layer": r"apt-get update .*apt-get install",
        "no recommends": r"apt-get install -y --no-install-recommends",
        "no lists left": r"rm -rf /var/lib/apt/lists/\*",
    }
    return [f"{what}: {command}" for what, pattern in wanted.items() if not re.search(pattern, command)]


def requirements_module() -> Any:
    spec = importlib.util.spec_from_file_location("image_requirements", ROOT / "docker" / "requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert hadolint is not None, "it is one of the development tools: make setup"
    checked = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_images_repeat_and_run_as_anyone() -> None:
    assert findings(DOCKERFILE.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"@sha256:[0-9a-f]+", ""),
        ("bookworm-[0-9]+-slim", "latest"),
        ("BASE=debian", "BASE=registry.example.com/debian"),
        ("USER 10001:10001", "USER penstock"),
        ("USER 10001:10001", "USER 0:0"),
        (r"USER 10001:10001\n", ""),
        (r'ENTRYPOINT \["penstock"\]', "ENTRYPOINT penstock"),
        ("libjpeg-turbo-progs libturbojpeg0", "gcc libturbojpeg0"),
        ("libjpeg-turbo-progs libturbojpeg0", "libjpeg62-turbo-dev libturbojpeg0"),
        (r"g\+\+ python3-dev", "python3-dev"),
        (r"g\+\+ python3-dev", "g++ make python3-dev"),
        (r" && rm -rf /var/lib/apt/lists/\*", ""),
        ("apt-get install -y --no-install-recommends", "apt-get install -y"),
        ("install -c constraints.txt -r", "install -r"),
        ("COPY bench bench", "ADD bench bench"),
        ("WORKDIR /workspace", "WORKDIR workspace"),
        ("org.opencontainers.image.revision", "revision"),
        ("find / -xdev", "curl -O https://example.com/x && find / -xdev"),
        (r"CMD \[", "HEALTHCHECK CMD true\nCMD ["),
    ],
)
def test_what_is_wrong_goes_red(right: str, wrong: str) -> None:
    text, changes = re.subn(right, wrong, DOCKERFILE.read_text("utf-8"))
    assert changes >= 1
    assert findings(text) != []


def test_version_label_is_the_package_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = re.findall(r"^ARG VERSION=(.+)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    assert versions == [project["version"]] * 2


def test_context_holds_what_is_copied_and_no_more() -> None:
    """.dockerignore lets through exactly what some COPY takes from the context."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    copied = [
        source
        for name, rest in instructions(DOCKERFILE.read_text("utf-8"))
        if name == "COPY" and "--from=" not in rest
        for source in rest.split()[:-1]
    ]
    assert kept == set(copied)
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="runs with the image's Python, which has tomllib")
def test_requirements_are_those_of_the_package_s_extras() -> None:
    project = {"dependencies": ["a"], "optional-dependencies": {"hdf5": ["b>=1"], "turbojpeg": ["c"]}}
    project["optional-dependencies"]["dali-cuda130"] = ["e"]
    module = requirements_module()
    assert module.image_requirements(project, "cpu") == ["a", "b>=1", "c"]
    assert module.image_requirements(project, "gpu") == ["a", "b>=1", "c", "e"]
