"""The repository around the code: README tree, licence, pinned versions, the wheel, nothing of one machine.

`python tests/test_repository.py --write` refreshes the tree in README.md; captions are the docstrings' first lines.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
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
# Folders in the order in which data flows; files at the top come last.
FOLDER_ORDER = (*PACKAGES, "tests", "docker")
TREE_BLOCK = re.compile(r"(<!-- tree -->\n```text\n)(.*?)(```\n<!-- /tree -->)", re.DOTALL)

# What cannot carry its caption itself.
CAPTIONS = {
    "pipelines/": "what happens to one sample, then to one batch; imports nothing of ours",
    "loaders/": "who runs it: backends behind one iterator; may import pipelines",
    "bench/": "how fast, and why not faster: command line, training, ceilings, report; may import both",
    "bench/results/": "records of measured runs",
    "tests/": "mirrors the tree; one contract suite runs on every backend",
    "tests/studies/": "programs run by hand that hold the benchmark to what it promises",
    "tests/support/": "what several tests share",
    "tests/support/images/": "images, folders of them, and sources that serve them",
    "tests/support/cache/": "cache files: made by hand, damaged, or left by builds that were killed",
    "tests/support/processes/": "commands, ranks and workers as processes of their own",
    "tests/support/bench/": "records, reports, streams and options to compare",
    "docker/": "images and job files for clusters",
    "docker/kubernetes/": "a job for Kubernetes",
    "docker/slurm/": "jobs for SLURM, and a SLURM to try them on",
    ".ci/": "what continuous integration starts",
    ".gitignore": "what stays out of the repository",
    "LICENSE": "Apache License 2.0",
    "README.md": "this page",
    "constraints.txt": "the exact versions that the tests passed with",
    "pyproject.toml": "the package, its extras, and the settings of ruff, mypy and pytest",
}
# Shown as one line, whatever is in them.
COLLAPSED = ("bench/results/",)


def repository_files(root: Path = ROOT) -> list[str]:
    """Paths (posix, relative) of the files that belong to the repository, whether committed yet or not.

    Asks git; in a copy without git walks the folder and leaves out what .gitignore names.
    """
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, check=False)
        if listed.returncode == 0:
            paths = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
            return sorted(path for path in paths if (root / path).is_file())
    return sorted(_walk(root))


def _walk(root: Path) -> Iterator[str]:
    ignored = [".git/", *(root / ".gitignore").read_text("utf-8").split()]
    for folder, subfolders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        kept = [name for name in subfolders if not _is_ignored((here / name).as_posix() + "/", ignored)]
        subfolders[:] = kept
        yield from ((here / n).as_posix() for n in names if not _is_ignored((here / n).as_posix(), ignored))


def _is_ignored(path: str, patterns: Iterable[str]) -> bool:
    """Of gitignore's rules the three used here: `name/`, `/anchored/` and `*.suffix`."""
    for pattern in patterns:
        if pattern.startswith("/"):
            if path == pattern[1:]:
                return True
        elif fnmatch(PurePosixPath(path).name + "/" * path.endswith("/"), pattern):
            return True
    return False


def shown(path: str, root: Path = ROOT) -> str | None:
    """The tree's entry for a file: itself, the collapsed folder it is in, or None for a marker that says nothing."""
    for folder in COLLAPSED:
        if path.startswith(folder):
            return folder
    name = PurePosixPath(path).name
    says_nothing = name == "py.typed" or (name == "__init__.py" and path.count("/") > 1)  # its line is the folder's
    return None if says_nothing else path


def entries_on_disk(root: Path = ROOT) -> set[str]:
    return {entry for path in repository_files(root) if (entry := shown(path, root))}


def entries_in_readme(block: str) -> dict[str, str]:
    """The tree's entries with their captions; four spaces of indentation a level, a name, spaces, a caption."""
    entries: dict[str, str] = {}
    folders: list[str] = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 4
        name, _, caption = line.strip().partition(" ")
        del folders[depth:]
        path = "".join(folders) + name
        if name.endswith("/"):
            folders.append(name)
        entries[path] = caption.strip()
    return entries


def leaves(entries: Iterable[str]) -> set[str]:
    """Entries that hold no other entry: every file, and each collapsed folder."""
    listed = list(entries)
    return {e for e in listed if not (e.endswith("/") and any(o != e and o.startswith(e) for o in listed))}


def caption(path: str, root: Path = ROOT) -> str:
    """One line about a file or folder ("name/"): from CAPTIONS, the docstring, the heading or the first comment."""
    if path in CAPTIONS:
        return CAPTIONS[path]
    if path.endswith("/") and path.startswith("tests/"):
        return f"tests of {path.removeprefix('tests/')}"
    if path.endswith("/"):
        path += "__init__.py"
    text = (root / path).read_text("utf-8") if (root / path).is_file() else ""
    if path.endswith(".py"):
        lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()[:1]
    else:
        lines = [line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")][:1]
    return "".join(lines).rstrip(".")


def render_tree(root: Path = ROOT) -> str:
    """The text between the tree's marks."""
    entries = entries_on_disk(root)
    folders = {f"{parent}/" for entry in entries for parent in PurePosixPath(entry).parents if parent.name}
    rows = []
    for entry in sorted(entries | folders, key=_sort_key):
        indent = "    " * (len(PurePosixPath(entry).parts) - 1)
        rows.append((f"{indent}{PurePosixPath(entry).name}{'/' * entry.endswith('/')}", caption(entry, root)))
    width = max(len(name) for name, _ in rows) + 2
    return "".join(f"{name:<{width}}{text}".rstrip() + "\n" for name, text in rows)


def _sort_key(entry: str) -> list[tuple[int, str]]:
    """Folders before files at the top, in FOLDER_ORDER; below it folders after files, by name."""
    parts = PurePosixPath(entry).parts
    keys = []
    for depth, part in enumerate(parts):
        is_folder = depth < len(parts) - 1 or entry.endswith("/")
        if depth == 0:
            rank = FOLDER_ORDER.index(part) if part in FOLDER_ORDER else 90 if is_folder else 91
        else:
            rank = int(is_folder)
        keys.append((rank, part))
    return keys


def readme_tree(root: Path = ROOT) -> str:
    found = TREE_BLOCK.search((root / "README.md").read_text("utf-8"))
    assert found, "README.md has no block between <!-- tree --> and <!-- /tree -->"
    return found.group(2)


# Built from pieces, so that this file does not hold what it looks for.
PRIVATE = [
    *(rf"(?<![\w.])/{name}/" for name in ("root", "work", "Users")),
    r"(?<![\w.])/{}/[a-z]".format("home"),
    r"(?<!\w)\.\./{}\b".format("shared"),
    *(re.escape(".".join(host)) for host in (("pypi", "org"), ("pythonhosted", "org"), ("pytorch", "org/whl"))),
    "-".join(("index", "url")),
]


def private_lines(path: str, text: str) -> list[str]:
    """Lines that only make sense on one machine: absolute paths of its user, package registries."""
    pattern = re.compile("|".join(PRIVATE))
    return [f"{path}:{n}: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def unpinned(project: dict[str, Any], constraints: str) -> list[str]:
    """Dependencies (and those of `dev`) that constraints.txt does not pin to one version in range, on each Python."""
    pins = [Requirement(line) for line in constraints.splitlines() if line and not line.startswith("#")]
    findings = [f"{pin} is no exact pin" for pin in pins if [s.operator for s in pin.specifier] != ["=="]]
    for line in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
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
    """Commands of a gate that go on after a failure."""
    return [
        line for line in text.splitlines() if re.search(r"\|\|\s*(true|:)(\s|;|$)|^\t@?-|^MAKEFLAGS.*-[a-z]*[ik]", line)
    ]


def build_wheel(tree: Path, out: Path) -> list[str]:
    """Names of the files in the wheel that pip builds from a copy of the repository."""
    for path in repository_files():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*command, "--wheel-dir", str(out), str(tree)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_readme_tree_is_the_disk() -> None:
    entries = entries_in_readme(readme_tree())
    on_disk = entries_on_disk()
    hint = "run `python tests/test_repository.py --write`"
    assert sorted(on_disk - set(entries)) == [], f"not in README.md; {hint}"
    assert sorted(leaves(entries) - on_disk) == [], f"in README.md, not on disk; {hint}"


def test_every_entry_of_the_tree_has_a_caption() -> None:
    assert [entry for entry, text in entries_in_readme(readme_tree()).items() if not text] == []


def test_a_tree_that_differs_goes_red(tmp_path: Path) -> None:
    for name in ("loaders/order.py", "loaders/deep/a.py", "bench/results/1.json", "loaders/py.typed", "demo/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""Order of samples."""')
    (tmp_path / ".gitignore").write_text("/demo/\n*.pyc\n")
    tree = render_tree(tmp_path)
    expected = {".gitignore", "loaders/order.py", "loaders/deep/a.py", "bench/results/"}
    assert leaves(entries_in_readme(tree)) == entries_on_disk(tmp_path) == expected
    assert entries_in_readme(tree)["loaders/order.py"] == "Order of samples"
    (tmp_path / "loaders/order.py").rename(tmp_path / "loaders/shuffle.py")
    (tmp_path / "loaders/order.pyc").touch()
    assert leaves(entries_in_readme(tree)) ^ entries_on_disk(tmp_path) == {"loaders/order.py", "loaders/shuffle.py"}


def test_walk_without_git_finds_what_git_finds() -> None:
    # Files that git follows in spite of .gitignore would be a mistake of their own.
    assert sorted(_walk(ROOT)) == repository_files()


def test_nothing_of_one_machine() -> None:
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
def test_a_private_line_goes_red(line: str) -> None:
    assert private_lines("a.md", f"fine\n{line}\nhttps://pytorch.org, frame/work/flow, $HOME/data") == [
        f"a.md:2: {line}"
    ]


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
def test_a_missing_pin_goes_red(constraints: str) -> None:
    project = {"dependencies": ["torch>=2.4"], "optional-dependencies": {"dev": ["ruff>=0.9"]}}
    assert unpinned(project, constraints) != []
    assert unpinned(project, "# why\ntorch==2.9.0\nRuff==0.9.1\n") == []


def test_the_gate_is_strict() -> None:
    gate = ROOT / ".ci" / "run"
    assert os.access(gate, os.X_OK)
    lines = gate.read_text("utf-8").splitlines()
    assert [line for line in lines if "make" in line] == ["make test", "make slurm-test", "exec make image-test"]
    for strict in (".ci/run", "Makefile", "docker/build-cpu.sh", "docker/test-image.sh"):
        text = (ROOT / strict).read_text("utf-8")
        assert softened(text) == []
        assert strict == "Makefile" or "\nset -euo pipefail\n" in text


@pytest.mark.parametrize("line", ["\tpytest || true", "\truff check . ||:", "\t-mypy", "\t@-mypy", "MAKEFLAGS += -k"])
def test_a_soft_gate_goes_red(line: str) -> None:
    assert softened(f"test:\n\tpytest -m 'not gpu' || exit 1\n{line}\n") == [line]


def test_documented_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    pages = "\n".join((ROOT / page).read_text("utf-8") for page in ("README.md", "CONTRIBUTING.md"))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", pages, re.MULTILINE))
    assert {"bench", "test"} <= named <= targets


def test_wheel_holds_the_package_and_nothing_bare(tmp_path: Path) -> None:
    names = build_wheel(tmp_path / "tree", tmp_path / "out")
    (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    assert {name.partition("/")[0] for name in names} == {"penstock", info}
    assert {PurePosixPath(name).parts[1] for name in names if name.startswith("penstock/")} == set(PACKAGES)
    sources = [path for path in repository_files() if path.partition("/")[0] in PACKAGES]
    modules = {f"penstock/{path}" for path in sources if path.endswith((".py", ".jinja"))}
    markers = {f"penstock/{package}/py.typed" for package in PACKAGES}
    assert {name for name in names if name.startswith("penstock/")} == modules | markers
    assert f"{info}/licenses/LICENSE" in names


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_repository.py --write")
    readme = ROOT / "README.md"
    tree = render_tree()
    readme.write_text(TREE_BLOCK.sub(lambda m: m[1] + tree + m[3], readme.read_text("utf-8")), "utf-8")
