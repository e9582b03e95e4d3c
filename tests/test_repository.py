"""The repository around the code: README, licence, pinned versions, the wheel, nothing specific to one machine."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipelines", "loaders", "bench")
ROOMS_BLOCK = re.compile(r"<!-- rooms -->\n```text\n(.*?)```\n<!-- /rooms -->", re.DOTALL)
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *(f"{folder}/README.md" for folder in ("pipelines", "loaders", "bench", "bench/results", "docker")),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
MAX_README_LINES, MAX_COLUMNS = 150, 110


def repository_files(root: Path = ROOT) -> list[str]:
    """List the files that belong to the repository, committed or not, as relative posix paths.

    Asks git; in a copy without git it walks the folder and skips the names in .gitignore.
    """
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, check=False)
        if listed.returncode == 0:
            paths = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
            return sorted(path for path in paths if (root / path).is_file())
    return sorted(_walk(root))


def _walk(root: Path) -> Iterator[str]:
    ignored = [".git/", ".git", *(root / ".gitignore").read_text("utf-8").split()]
    for folder, subfolders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        kept = [name for name in subfolders if not _is_ignored((here / name).as_posix() + "/", ignored)]
        subfolders[:] = kept
        yield from ((here / n).as_posix() for n in names if not _is_ignored((here / n).as_posix(), ignored))


def _is_ignored(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern of .gitignore matches; three kinds are in use: `name/`, `/anchored/`, `*.suffix`."""
    for pattern in patterns:
        if pattern.startswith("/"):
            if path == pattern[1:]:
                return True
        elif fnmatch(PurePosixPath(path).name + "/" * path.endswith("/"), pattern):
            return True
    return False


def room_captions(root: Path = ROOT) -> dict[str, str]:
    """Return each package and each room with the first line of its `__init__.py`."""
    inits = [path for package in PACKAGES for path in (root / package).glob("**/__init__.py")]
    captions = {
        path.parent.relative_to(root).as_posix(): (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
        for path in inits
    }
    return {room + "/" * ("/" not in room): (text.splitlines() or [""])[0] for room, text in captions.items()}


def listed_rooms(page: str) -> dict[str, str]:
    """Return the rooms of a page between `<!-- rooms -->` and `<!-- /rooms -->`: room, spaces, caption."""
    found = ROOMS_BLOCK.search(page)
    assert found, "docs/design/index.md has no block between <!-- rooms --> and <!-- /rooms -->"
    rows = [line.partition(" ") for line in found.group(1).splitlines()]
    return {room: text.strip() for room, _, text in rows}


def too_wide(path: str, text: str) -> list[str]:
    """Return the lines of a page that are wider than MAX_COLUMNS."""
    return [
        f"{path}:{n}: {len(line)} columns" for n, line in enumerate(text.splitlines(), 1) if len(line) > MAX_COLUMNS
    ]


def broken_links(path: str, text: str, root: Path = ROOT) -> list[str]:
    """Return the relative links of a page to missing files or headings."""
    broken = []
    for target, anchor in set(re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", text)):
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if "://" in target:
            continue
        is_there = (root / file).exists()
        if is_there and anchor and file.endswith(".md"):
            is_there = anchor[1:] in headings(text if file == path else (root / file).read_text("utf-8"))
        if not is_there:
            broken.append(f"{path}: {target}{anchor}")
    return sorted(broken)


def headings(page: str) -> list[str]:
    """Return the anchors of a page's headings, as code hosts and MkDocs make them."""
    titles = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles]


# Built from pieces, so that this file does not contain what it searches for.
PRIVATE = [
    *(rf"(?<![\w.])/{name}/" for name in ("root", "work", "Users")),
    r"(?<![\w.])/{}/[a-z]".format("home"),
    r"(?<!\w)\.\./{}\b".format("shared"),
    *(re.escape(".".join(host)) for host in (("pypi", "org"), ("pythonhosted", "org"), ("pytorch", "org/whl"))),
    "-".join(("index", "url")),
]


def private_lines(path: str, text: str) -> list[str]:
    """Return the lines that are valid on one machine only: absolute paths of its user, package registries."""
    pattern = re.compile("|".join(PRIVATE))
    return [f"{path}:{n}: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def unpinned(project: dict[str, Any], constraints: str) -> list[str]:
    """Return the dependencies that constraints.txt does not pin, for each Python, to one version in their range."""
    pins = [Requirement(line) for line in constraints.splitlines() if line and not line.startswith("#")]
    extras = project["optional-dependencies"]
    findings = [f"{pin} is not an exact pin" for pin in pins if [s.operator for s in pin.specifier] != ["=="]]
    for line in (*project["dependencies"], *(x for name in ("dev", "docs") for x in extras.get(name, ()))):
        wanted = Requirement(line)
        for python in ("3.10", "3.11", "3.13"):
            versions = [
                Version(next(iter(pin.specifier)).version)
                for pin in pins
                if canonicalize_name(pin.name) == canonicalize_name(wanted.name)
                and (pin.marker is None or pin.marker.evaluate({"python_version": python}))
            ]
            if len(versions) != 1 or versions[0] not in wanted.specifier:
                findings.append(f"Python {python}: {wanted} is pinned to {[str(v) for v in versions]}")
    return findings


def softened(text: str) -> list[str]:
    """Return the commands of a gate that ignore a failure."""
    return [
        line for line in text.splitlines() if re.search(r"\|\|\s*(true|:)(\s|;|$)|^\t@?-|^MAKEFLAGS.*-[a-z]*[ik]", line)
    ]


def build_wheel(tree: Path, out: Path, compiler: str) -> Path:
    """Build a wheel from a copy of the repository with a C compiler and return its path."""
    for path in repository_files():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--wheel-dir", str(out), str(tree)]
    built = subprocess.run(command, env={**os.environ, "CC": compiler}, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def test_design_page_lists_the_rooms() -> None:
    page = (ROOT / "docs" / "design" / "index.md").read_text("utf-8")
    assert listed_rooms(page) == room_captions()
    assert len(room_captions()) > 25
    assert all(room_captions().values())


def test_a_missing_room_is_found(tmp_path: Path) -> None:
    for room, text in (("loaders", "Who runs it."), ("loaders/data/cache", "Holds a cache.")):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "__init__.py").write_text(f'"""{text}"""\n')
    rows = "loaders/            Who runs it.\nloaders/data/cache  Holds a cache.\n"
    page = f"# A\n<!-- rooms -->\n```text\n{rows}```\n<!-- /rooms -->\n"
    assert listed_rooms(page) == room_captions(tmp_path)
    (tmp_path / "loaders/data/cache").rename(tmp_path / "loaders/data/store")
    assert listed_rooms(page) != room_captions(tmp_path)


def test_pages_are_narrow_and_have_valid_links() -> None:
    pages = {page: (ROOT / page).read_text("utf-8") for page in PAGES}
    assert len(pages["README.md"].splitlines()) <= MAX_README_LINES
    assert [line for page, text in pages.items() for line in too_wide(page, text)] == []
    assert [link for page, text in pages.items() for link in broken_links(page, text)] == []
    assert sorted(set(re.findall(r"TODO\S*", "".join(pages.values())))) == []


def test_a_wide_line_or_a_broken_link_is_found() -> None:
    assert too_wide("a.md", "x" * 110 + "\n" + "x" * 111) == ["a.md:2: 111 columns"]
    text = (
        "# A b, c.d\n[a](Makefile) [b](https://a.b/c#d) [c](nowhere.md#x) [d](#a-b-cd) [e](#a-b) [f](CHANGELOG.md#x)\n"
    )
    assert broken_links("README.md", text) == [
        "README.md: #a-b",
        "README.md: CHANGELOG.md#x",
        "README.md: nowhere.md#x",
    ]


def test_walk_without_git_finds_what_git_finds() -> None:
    # A file that git tracks in spite of .gitignore would be a separate mistake.
    assert sorted(_walk(ROOT)) == repository_files()


def test_the_repository_has_no_built_or_downloaded_files() -> None:
    built = {".whl", ".gz", ".zip", ".so", ".o", ".pyc", ".h5", ".pt"}
    assert [path for path in repository_files() if Path(path).suffix in built] == []


def test_nothing_is_specific_to_one_machine() -> None:
    findings = []
    for path in repository_files():
        try:
            findings += private_lines(path, (ROOT / path).read_text("utf-8"))
        except UnicodeDecodeError:
            continue
    assert findings == []


@pytest.mark.parametrize(
    "line",
    [
        "open('/{}/photos/1.jpg')".format("work"),
        "cd /{}/penstock".format("root"),
        '"data": "/{}/ada/imagenet"'.format("home"),
        "penstock bench ../{}/photos".format("shared"),
        "pip install --{}-url https://example.com".format("index"),
        "https://{}/simple".format(".".join(("pypi", "org"))),
    ],
)
def test_a_private_line_is_found(line: str) -> None:
    assert private_lines("a.md", f"fine\n{line}\nhttps://pytorch.org, frame/work/flow, $HOME/data") == [
        f"a.md:2: {line}"
    ]


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0] == version
    assert set(re.findall(r"^ARG VERSION=(.*)", (ROOT / "docker/Dockerfile").read_text("utf-8"), re.MULTILINE)) == {
        version
    }


def test_licence_is_the_whole_text() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License\n" in text
    assert "Version 2.0, January 2004" in text
    assert all(f"\n   {section}. " in text for section in range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in text


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert unpinned(project, (ROOT / "constraints.txt").read_text("utf-8")) == []


@pytest.mark.parametrize(
    "constraints",
    [
        "torch==2.9.0",
        "torch==2.9.0\nRuff==0.1.0",
        "torch>=2.9.0\nruff==0.9.1",
        'torch==2.9.0\nruff==0.9.1; python_version >= "3.11"',
        "torch==2.9.0\nruff==0.9.1\nruff==0.9.2",
    ],
)
def test_a_missing_pin_is_found(constraints: str) -> None:
    project = {"dependencies": ["torch>=2.4"], "optional-dependencies": {"dev": ["ruff>=0.9"]}}
    assert unpinned(project, constraints) != []
    assert unpinned(project, "# why\ntorch==2.9.0\nRuff==0.9.1\n") == []


def test_the_gate_is_strict() -> None:
    gate = ROOT / ".ci" / "run"
    assert os.access(gate, os.X_OK)
    lines = gate.read_text("utf-8").splitlines()
    assert [line.strip() for line in lines if "make" in line] == [
        "make test",
        "make docs",
        "make test-matrix MATRIX='oldest newest-3.13 -- --if-installable'",
        "make slurm-test",
        "exec make image-test",
    ]
    for strict in (".ci/run", "Makefile", "docker/build-cpu.sh", "docker/test-image.sh"):
        text = (ROOT / strict).read_text("utf-8")
        assert softened(text) == []
        assert strict == "Makefile" or "\nset -euo pipefail\n" in text


@pytest.mark.parametrize("line", ["\tpytest || true", "\truff check . ||:", "\t-mypy", "\t@-mypy", "MAKEFLAGS += -k"])
def test_a_soft_gate_is_found(line: str) -> None:
    assert softened(f"test:\n\tpytest -m 'not gpu' || exit 1\n{line}\n") == [line]


def missing_tests(texts: Iterable[str]) -> list[str]:
    """Return the missing test files that the texts name."""
    named = {name for text in texts for name in re.findall(r"(?<![\w/])tests/[\w/]+/test_\w+\.py", text)}
    return sorted(name for name in named if not (ROOT / name).is_file())


def test_named_test_files_exist() -> None:
    files = [ROOT / name for name in repository_files() if name.endswith((".py", ".md", ".sh")) or name == "Makefile"]
    assert missing_tests(path.read_text("utf-8") for path in files) == []
    assert missing_tests(["pytest tests/" + "loaders/test_gone.py"]) == ["tests/" + "loaders/test_gone.py"]


def test_another_project_called_penstock_is_reported_in_one_line(tmp_path: Path) -> None:
    """Its `__init__.py` in the same folder turns the namespace package into a regular one."""
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "__init__.py").write_text("")
    for part in PACKAGES:
        (tmp_path / "penstock" / part).symlink_to(ROOT / part)
    code = "import warnings; warnings.simplefilter('error'); import penstock.pipelines"
    keep = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=keep, capture_output=True, text=True, check=False)
    assert "__init__.py' belongs to another project called penstock: uninstall" in done.stderr.splitlines()[-1]


def test_the_wheel_needs_no_setup() -> None:
    """It would install torch and all tools, gigabytes for a wheel of less than one megabyte."""
    planned = subprocess.run(["make", "-n", "wheel"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pip wheel --no-deps --wheel-dir dist ." in planned
    assert ".venv" not in planned


LIBRARY = "penstock/pipelines/native/libpenstock.so"


@pytest.mark.slow
@pytest.mark.parametrize("works", [True, False])
def test_wheel_holds_the_package_and_nothing_bare(tmp_path: Path, works: bool) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\n{"cc" if works else "false"} "$@" -O0\n')  # optimising takes ten seconds
    compiler.chmod(0o755)
    wheel = build_wheel(tmp_path / "tree", tmp_path / "out", str(compiler))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    assert {name.partition("/")[0] for name in names} == {"penstock", info}
    assert {PurePosixPath(name).parts[1] for name in names if name.startswith("penstock/")} == set(PACKAGES)
    sources = [path for path in repository_files() if path.partition("/")[0] in PACKAGES]
    modules = {f"penstock/{path}" for path in sources if path.endswith((".py", ".jinja", ".c", ".h"))}
    markers = {f"penstock/{package}/py.typed" for package in PACKAGES}
    built = {LIBRARY} if works and shutil.which("cc") else set()
    assert {name for name in names if name.startswith("penstock/")} == modules | markers | built
    assert f"{info}/licenses/LICENSE" in names
    # One wheel for every Python 3 on this platform; without the library, for every platform.
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_") if built else "any"
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    code = "from penstock.pipelines.native.library import native_library as n; print(n() is not None)"
    env = {"PYTHONPATH": str(tmp_path / "installed")}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == (f"{bool(built)}\n", "")


def test_every_section_of_figures_names_its_processor() -> None:
    """A ratio between loaders is valid for one processor: on another it was 1.00 (not 1.03) and 0.78 (not 1.13)."""
    text = (ROOT / "bench" / "results" / "README.md").read_text("utf-8")
    sections = [section.partition("\n") for section in text.split("\n## ")[1:]]
    assert len(sections) > 10
    silent = [name for name, _, body in sections if not re.search(r"\*\*.*(EPYC|Xeon|Core|Ryzen|Neoverse).*\*\*", body)]
    assert silent == ["The picture"]


def test_gpu_tests_are_collected_without_the_packages_of_other_tests() -> None:
    """A GPU machine may have only PyTorch and pytest: one failing import would end the whole run."""
    packages = [
        *("kubernetes_validate", "turbojpeg", "yaml", "nvidia", "lightning", "accelerate", "datasets", "pyarrow"),
        *("h5py", "isal", "prometheus_client", "moto", "flask", "obstore", "triton", "timm"),
    ]
    blocked = f"import sys, pytest; sys.modules.update(dict.fromkeys({packages})); sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", blocked, "-q", "-p", "no:cacheprovider", "-m", "gpu", "--collect-only", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    assert "test_batch_feed.py" in done.stdout
