"""Rules about the source code: import directions, optional packages, sizes, no pickle, one clock, tests that assert.

Each check is a function that yields its findings about one module. OFFENCES has, for each check, source text that it
must reject; INNOCENT has text that it must accept.

import-linter 2.17 was tried for the imports. Its layers are an order of rooms; restrictions on the rooms below take one
contract each (14 rooms), so that ROOMS and FOLDERS, 45 lines, become 130 lines of settings. It does not see imports by
name (`importlib.import_module`), nor `import loaders` and `import penstock`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
# A part may import itself and the parts to its left.
LAYERS = ("pipelines", "loaders", "bench")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# room -> the rooms of its own package that it may import, besides the packages to its left ("errors", "augmentations"
# and "spec" are files of pipelines). `test_rooms_import_upwards_only` checks the order; MANY is every room above.
MANY = "all above"
ROOMS: dict[str, str] = {
    "pipelines/errors": "",
    "pipelines/messages": "errors",
    "pipelines/augmentations": "errors messages",
    "pipelines/image_types": "",
    "pipelines/pipeline_settings": "augmentations image_types",
    "pipelines/spec": "errors messages augmentations image_types pipeline_settings",
    "pipelines/presets": "pipeline_settings spec",
    "pipelines/resampling": "image_types",
    "pipelines/native": "image_types",
    "pipelines/plan": "errors augmentations spec image_types native",
    "pipelines/jpeg": "errors image_types",
    "pipelines/fields": "errors messages image_types resampling plan",
    "pipelines/sample": "errors messages spec image_types resampling jpeg native fields",
    "pipelines/batch": "errors messages spec plan native fields",
    "pipelines": MANY,
    "loaders/system": "",
    "loaders/order": "system",
    "loaders/data": "system order",
    "loaders/make": "system order data",
    "loaders/run": "system order data make",
    "loaders/cache_build": "system order data run",
    "loaders/dali": "system order data make run cache_build",
    "loaders/drop_in": "system order run",
    "loaders/show": "data",
    "loaders/front": MANY,
    "loaders": MANY,
    "bench/record": "",
    "bench/probe": "record",
    "bench/verdict": "record",
    "bench/train": "record",
    "bench/run": "record probe verdict train",
    "bench/report": "record verdict",
    "bench/checks": "record probe train",
    "bench/commands": MANY,
    "bench": "commands train",
}
# Rooms with folders: the folders in order; each may import those to its left. LOOSE stands for the modules of the room
# that are in none of them.
LOOSE = "."
FOLDERS: dict[str, str] = {
    "loaders/data": "samples sources files labels fields cache requests remote indexes arrow tables tars views .",
    "loaders/make": "own . sizes",
    "loaders/run": "metrics workers feed engine",
    "bench/probe": "data ceilings search",
    "bench/train": "step .",
}
MAX_FOLDER_MODULES = 20
# setuptools itself imports this module while it builds penstock.
BUILD_COMMAND = ("pipelines/native/wheel.py", "setuptools")

# path -> reason.
LONG_FILES: dict[str, str] = {}
# path::function -> reason.
LONG_FUNCTIONS: dict[str, str] = {
    "bench/commands/train.py::train": "half of it are its options: a command's options are its parameters",
    "loaders/front/create.py::create_loader": "two thirds are signature and docstring, the manual of the image path",
}

# Optional packages that only some files may import: import name -> part of those files' names.
HOMES = {"pycurl": "curl", "nvidia": "dali", "h5py": "hdf5", "pyarrow": "arrow", "obstore": "store", "fsspec": "fsspec"}
CORE_IMPORTS = {
    Requirement(line).name.replace("-", "_").lower()
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
}
CLOCKS = {
    f"time.{name}{suffix}"
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime")
    for suffix in ("", "_ns")
} | {"timeit.default_timer", "timeit.timeit", "timeit.repeat"}
# Functions that create a tensor with torch's default dtype on its default device, which a program may change.
FACTORIES = {f"torch.{name}" for name in ("empty", "zeros", "ones", "full", "tensor", "arange", "linspace", "eye")}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# "import": with the module; "guarded": the same, with ImportError caught; "later": in a function, or for type checkers.
When = Literal["import", "guarded", "later"]


class Module:
    """Hold one source file: its path relative to the root (posix), its text and its syntax tree."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text, filename=path)

    @property
    def layer(self) -> str:
        return self.path.partition("/")[0]

    @cached_property
    def nodes(self) -> list[tuple[ast.AST, When]]:
        """Every node of the syntax tree, with the time when it runs."""
        return list(_walk(self.tree, "import"))

    @cached_property
    def imports(self) -> list[Import]:
        return [found for node, when in self.nodes for found in _imports_of(node, when)]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The dotted origin of each name that an import binds."""
        bound: dict[str, str] = {}
        for node, _ in self.nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    bound[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for name in node.names:
                    bound[name.asname or name.name] = f"{node.module}.{name.name}"
        return bound

    def dotted(self, node: ast.AST) -> str | None:
        """Return the origin of a name: "time.perf_counter" for `now` after `from time import perf_counter as now`.

        None for expressions that are not dotted names.
        """
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return base and f"{base}.{node.attr}"
        return self.aliases.get(node.id, node.id) if isinstance(node, ast.Name) else None

    @cached_property
    def functions(self) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """(qualified name, node) of every function, including methods and nested functions."""
        return list(_functions(self.tree, ""))


class Import(NamedTuple):
    """Hold one import of one dotted name: "a.b.c" for `from a.b import c`."""

    name: str
    line: int
    when: When
    relative: bool = False

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def _walk(node: ast.AST, when: When) -> Iterator[tuple[ast.AST, When]]:
    yield node, when
    for field, value in ast.iter_fields(node):
        # Decorators and defaults of a function run when the module is imported; its body does not.
        inner = _when_of_body(node, when) if field == "body" else when
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, inner)


def _when_of_body(node: ast.AST, when: When) -> When:
    if isinstance(node, (*FUNCTION, ast.Lambda)):
        return "later"
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return "later"
    if isinstance(node, ast.Try) and when == "import":
        caught = " ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type)
        return "guarded" if "ImportError" in caught or "ModuleNotFoundError" in caught else when
    return when


def _imports_of(node: ast.AST, when: When) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for name in node.names:
            yield Import(name.name, node.lineno, when)
    elif isinstance(node, ast.ImportFrom):
        for name in node.names:
            yield Import(f"{node.module or ''}.{name.name}", node.lineno, when, relative=node.level > 0)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__", "find_spec")):
        # find_spec of a dotted name imports its parents.
        for argument in node.args[:1]:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(argument.value, node.lineno, when)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        name = f"{prefix}{child.name}" if isinstance(child, (*FUNCTION, ast.ClassDef)) else prefix.rstrip(".")
        if isinstance(child, FUNCTION):
            yield name, child
        yield from _functions(child, f"{name}." if name else "")


def import_direction(module: Module) -> Iterator[str]:
    """Imports go from bench to loaders to pipelines, never back."""
    allowed = LAYERS[: LAYERS.index(module.layer) + 1]
    for found in module.imports:
        if found.top in LAYERS:
            yield f"{module.path}:{found.line}: `{found.name}` lacks its package: write `penstock.{found.name}`"
        elif found.name == "penstock":
            yield f"{module.path}:{found.line}: import the part that is needed, not all of penstock"
        elif found.top == "penstock" and found.name.split(".")[1] not in allowed:
            yield f"{module.path}:{found.line}: {module.layer} imports {found.name}; it may import {', '.join(allowed)}"


def room_of(dotted: str) -> str:
    """Return the room of a dotted module name without `penstock.`: "loaders.data.cache.format" -> "loaders/data"."""
    parts = dotted.split(".")
    for depth in (2, 1):
        if "/".join(parts[:depth]) in ROOMS:
            return "/".join(parts[:depth])
    return parts[0]


def folder_of(dotted: str) -> str:
    """Return the folder of a module in its room: "loaders.data.cache.format" -> "cache"; LOOSE if it has none."""
    room = room_of(dotted)
    inner = dotted.removeprefix(room.replace("/", ".")).lstrip(".").partition(".")[0]
    return inner if inner in FOLDERS.get(room, "").split() else LOOSE


def room_direction(module: Module) -> Iterator[str]:
    """A room imports only the rooms that its table entry allows, and a folder those to its left, also in functions."""
    dotted = module.path.removesuffix(".py").replace("/", ".")
    own, folder = room_of(dotted), folder_of(dotted)
    rooms, folders = list(ROOMS), FOLDERS.get(own, LOOSE).split()
    allowed = rooms[: rooms.index(own)] if ROOMS[own] == MANY else [f"{module.layer}/{r}" for r in ROOMS[own].split()]
    for found in module.imports:
        name = found.name.removeprefix("penstock.")
        room = room_of(name)
        if found.top != "penstock" or room.partition("/")[0] != module.layer:
            continue
        if room == own and folder_of(name) not in folders[: folders.index(folder) + 1]:
            yield f"{module.path}:{found.line}: {own}/{folder} imports its folder {folder_of(name)}, which is above it"
        elif room not in (own, *allowed):
            yield f"{module.path}:{found.line}: {own} imports {room}; it may import {ROOMS[own] or 'no other room'}"


def backends_are_opened_by_name(module: Module) -> Iterator[str]:
    """Nothing in loaders imports a backend except the table of backends and the module of public names."""
    inside = module.path.startswith("loaders/dali/") or module.path in (
        "loaders/front/backends.py",
        "loaders/__init__.py",
    )
    for found in module.imports if module.layer == "loaders" and not inside else []:
        if found.name.startswith("penstock.loaders.dali"):
            yield f"{module.path}:{found.line}: only loaders/front/backends.py may import a backend"


def optional_packages_at_home(module: Module) -> Iterator[str]:
    """Only files with "dali" in their names import nvidia.dali, only files with "hdf5" in their names import h5py."""
    for found in module.imports:
        if not found.relative and HOMES.get(found.top, "") not in Path(module.path).name:
            yield f"{module.path}:{found.line}: {found.top} belongs in a file with {HOMES[found.top]!r} in its name"


def optional_packages_lazy(module: Module) -> Iterator[str]:
    """Optional packages are imported in functions, or (not h5py, not nvidia) with ImportError caught.

    A missing package then causes a clear error where it is needed, and none elsewhere.
    """
    known = CORE_IMPORTS | {"penstock", *LAYERS, *sys.stdlib_module_names}
    for found in module.imports:
        if found.relative or found.when == "later" or found.top.lower() in known:
            continue
        if (module.path, found.top) == BUILD_COMMAND:
            continue
        if found.when == "import" or found.top in HOMES:
            yield f"{module.path}:{found.line}: {found.top} is not a core dependency; import it where it is used"


def file_size(module: Module) -> Iterator[str]:
    """A file has at most MAX_FILE_LINES lines; a needless exemption is also a finding."""
    lines = len(module.text.splitlines())
    if (lines > MAX_FILE_LINES) != (module.path in LONG_FILES):
        yield f"{module.path}: {lines} lines, the limit is {MAX_FILE_LINES}, exempt: {module.path in LONG_FILES}"


def function_length(module: Module) -> Iterator[str]:
    """A function has at most MAX_FUNCTION_LINES lines (including the docstring, without decorators)."""
    for name, node in module.functions:
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if (lines > MAX_FUNCTION_LINES) != (f"{module.path}::{name}" in LONG_FUNCTIONS):
            yield f"{module.path}::{name}: {lines} lines, the limit is {MAX_FUNCTION_LINES}"


def data_is_not_code(module: Module) -> Iterator[str]:
    """No file that Penstock reads can make it run code; these rules add to ruff's (S1, S3, S506, S6)."""
    for node, _ in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        settings = {k.arg: k.value for k in node.keywords}
        if module.dotted(node.func) == "torch.load" and not _is_constant(settings.get("weights_only"), True):
            yield f"{module.path}:{node.lineno}: torch.load without weights_only=True unpickles"
        if "allow_pickle" in settings and not _is_constant(settings["allow_pickle"], False):
            yield f"{module.path}:{node.lineno}: allow_pickle must be False"


def tensors_name_dtype_and_device(module: Module) -> Iterator[str]:
    """Pixels do not depend on torch.set_default_dtype or torch.set_default_device, which belong to the program."""
    if module.layer not in ("pipelines", "loaders"):
        return
    for node, _ in module.nodes:
        if isinstance(node, ast.Call) and module.dotted(node.func) in FACTORIES:
            missing = {"dtype", "device"} - {keyword.arg for keyword in node.keywords}
            if missing:
                yield f"{module.path}:{node.lineno}: name {' and '.join(sorted(missing))} of {ast.unparse(node.func)}"


def one_clock(module: Module) -> Iterator[str]:
    """In bench/, only measure/clock.py reads a clock, so that all times are taken in the same way."""
    if module.layer != "bench" or module.path == "bench/record/clock.py":
        return
    for node, _ in module.nodes:
        if isinstance(node, (ast.Attribute, ast.Name)) and module.dotted(node) in CLOCKS:
            yield f"{module.path}:{node.lineno}: {module.dotted(node)} is read here; use measure/clock.py"


def module_has_a_caption(module: Module) -> Iterator[str]:
    """A module has a docstring with its contents, and a name that describes them too."""
    docstring = ast.get_docstring(module.tree)
    if module.tree.body and not (docstring and docstring.splitlines()[0].strip()):
        yield f"{module.path}: no module docstring"
    if Path(module.path).stem in ("utils", "util", "helpers", "misc", "common"):
        yield f"{module.path}: name it after its contents"


def every_test_asserts(module: Module) -> Iterator[str]:
    """Every test asserts something, directly or through a function of its file."""
    bodies = {name.rpartition(".")[2]: node for name, node in module.functions}
    for name, node in module.functions:
        if name.rpartition(".")[2].startswith("test_") and not _asserts(node, bodies, seen=set()):
            yield f"{module.path}::{name} asserts nothing"


def _asserts(node: ast.AST, bodies: dict[str, ast.FunctionDef | ast.AsyncFunctionDef], seen: set[str]) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assert) and not isinstance(inner.test, (ast.Constant, ast.Tuple)):
            return True
        if not isinstance(inner, ast.Call):
            continue
        called = ast.unparse(inner.func)
        last = called.rpartition(".")[2]
        if called in ("pytest.raises", "pytest.warns", "pytest.fail") or last.lstrip("_").startswith(
            ("assert", "check")
        ):
            return True
        if called in bodies and called not in seen:
            seen.add(called)
            if _asserts(bodies[called], bodies, seen):
                return True
    return False


def _is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


Check = Callable[[Module], Iterator[str]]
PACKAGE_CHECKS: tuple[Check, ...] = (
    import_direction,
    room_direction,
    backends_are_opened_by_name,
    optional_packages_at_home,
    optional_packages_lazy,
    file_size,
    function_length,
    data_is_not_code,
    tensors_name_dtype_and_device,
    one_clock,
    module_has_a_caption,
)
TEST_CHECKS: tuple[Check, ...] = (every_test_asserts, module_has_a_caption)


@cache  # parsing takes longer than most checks
def read_modules(*folders: str) -> list[Module]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths]


@pytest.mark.parametrize("check", PACKAGE_CHECKS)
def test_no_module_of_the_package_offends(check: Check) -> None:
    modules = read_modules(*LAYERS)
    assert {module.layer for module in modules} == set(LAYERS)
    assert [finding for module in modules for finding in check(module)] == []


@pytest.mark.parametrize("check", TEST_CHECKS)
def test_no_test_file_offends(check: Check) -> None:
    modules = read_modules("tests")
    assert "tests/test_architecture.py" in [module.path for module in modules]
    assert [finding for module in modules for finding in check(module)] == []


def test_exemptions_name_existing_code_and_a_reason() -> None:
    modules = {module.path: module for module in read_modules(*LAYERS)}
    names = {f"{path}::{name}" for path, module in modules.items() for name, _ in module.functions}
    assert set(LONG_FILES) <= set(modules)
    assert set(LONG_FUNCTIONS) <= names
    assert all(len(why.split()) > 3 for why in (LONG_FILES | LONG_FUNCTIONS).values())


def test_tests_mirror_the_tree() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(LAYERS) <= folders
    # tests/studies contains programs that measure the benchmark itself; their tests are in the same folder.
    assert [folder for folder in folders - {"studies"} if not (ROOT / folder).is_dir()] == []
    # With --import-mode=importlib a package in tests/ has no effect.
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def room_folders(root: Path = ROOT) -> list[str]:
    """Return the inner folders of the packages that contain modules, relative to the root."""
    folders = {path.parent for layer in LAYERS for path in (root / layer).glob("*/**/*.py")}
    return sorted(folder.relative_to(root).as_posix() for folder in folders)


def room_findings(root: Path) -> list[str]:
    """Return findings on folders that the tables lack, without a caption of one line, or with too many modules."""
    named = {*ROOMS, *(f"{room}/{folder}" for room, folders in FOLDERS.items() for folder in folders.split())}
    findings = [f"{folder} is not a room of the table" for folder in room_folders(root) if folder not in named]
    for folder in room_folders(root):
        init = root / folder / "__init__.py"
        text = init.read_text("utf-8") if init.exists() else ""
        if not (text.startswith('"""') and text.endswith('."""\n') and text.count("\n") == 1):
            findings.append(f"{folder}/__init__.py must contain only a caption of one line")
        modules = len([path for path in (root / folder).glob("*.py") if path.name != "__init__.py"])
        inner = FOLDERS.get(folder, LOOSE).split()
        if (modules > 0) != (LOOSE in inner) or modules > MAX_FOLDER_MODULES:
            findings.append(f"{folder} has {modules} modules, the limit is {MAX_FOLDER_MODULES}")
    return findings


def test_rooms_match_their_tables() -> None:
    inner = [f"{room}/{folder}" for room, folders in FOLDERS.items() for folder in folders.split() if folder != LOOSE]
    rooms = [room for room in ROOMS if room.count("/") == 1 and not (ROOT / f"{room}.py").exists()]
    assert room_folders() == sorted([*rooms, *inner])
    assert room_findings(ROOT) == []


def test_rooms_import_upwards_only() -> None:
    rooms = list(ROOMS)
    for number, room in enumerate(rooms):
        layer = room.partition("/")[0]
        above = rooms[:number]
        assert ROOMS[room] == MANY or all(f"{layer}/{other}" in above for other in ROOMS[room].split()), room


def test_a_crowded_room_without_caption_is_found(tmp_path: Path) -> None:
    for room in ("loaders/order", "loaders/data/odd"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "__init__.py").write_text('"""Holds a cache."""\n')
        (tmp_path / room / "a.py").touch()
    assert room_findings(tmp_path) == ["loaders/data/odd is not a room of the table"]
    (tmp_path / "loaders/data/odd").rename(tmp_path / "loaders/data/files")
    for number in range(MAX_FOLDER_MODULES):
        (tmp_path / "loaders/order" / f"b{number}.py").touch()
    (tmp_path / "loaders/data/files/__init__.py").write_text('"""Holds a cache."""\nimport os\n')
    assert len(room_findings(tmp_path)) == 2


LINES_61 = "def f():\n" + "    x = 1\n" * 60
OFFENCES: list[tuple[Check, str, str]] = [
    (import_direction, "pipelines/a.py", "from penstock.loaders.order.order import x"),
    (import_direction, "pipelines/a.py", "from penstock import bench"),
    (import_direction, "loaders/a.py", "def f():\n    import penstock.bench.cli"),
    (import_direction, "loaders/a.py", "import importlib\nimportlib.import_module('penstock.bench.cli')"),
    (import_direction, "bench/a.py", "from loaders.order import x"),
    (import_direction, "bench/a.py", "import penstock"),
    (room_direction, "loaders/order/a.py", "from penstock.loaders.data.sources.contract import x"),
    (room_direction, "loaders/data/cache/a.py", "from penstock.loaders.data.views.split import x"),
    (room_direction, "loaders/make/a.py", "def f():\n    from penstock.loaders.make.sizes import read_sizes"),
    (room_direction, "loaders/data/cache/a.py", "def f():\n    from penstock.loaders.front import create"),
    (room_direction, "pipelines/jpeg/a.py", "import penstock.pipelines.spec"),
    (room_direction, "bench/train/a.py", "import importlib\nimportlib.import_module('penstock.bench.report.page')"),
    (backends_are_opened_by_name, "loaders/front/create.py", "from penstock.loaders.dali.dali_engine import x"),
    (optional_packages_at_home, "loaders/data/sources/contract.py", "def f():\n    import h5py"),
    (optional_packages_at_home, "loaders/data/cache/hdf5_cache.py", "def f():\n    from nvidia import dali"),
    (optional_packages_at_home, "bench/cli.py", "import importlib\nimportlib.import_module('nvidia.dali.fn')"),
    (optional_packages_lazy, "loaders/data/cache/hdf5_cache.py", "import h5py"),
    (optional_packages_lazy, "loaders/dali/dali_engine.py", "if True:\n    import nvidia.dali.fn as fn"),
    (optional_packages_lazy, "pipelines/sample/decode.py", "class A:\n    import turbojpeg"),
    (optional_packages_lazy, "a.py", "try:\n    import PIL\nexcept ValueError: ..."),
    (optional_packages_lazy, "a.py", "try:\n    import h5py\nexcept ImportError: ..."),
    (optional_packages_lazy, "a.py", "if not TYPE_CHECKING:\n    import timm"),
    (optional_packages_lazy, "pipelines/sample/decode.py", "def f(x=__import__('PIL')): ..."),
    (file_size, "bench/a.py", "x = 1\n" * 401),
    (function_length, "bench/a.py", LINES_61),
    (function_length, "bench/a.py", "class A:\n    def f(self):\n" + "        x = 1\n" * 60),
    (data_is_not_code, "loaders/a.py", "import torch\ntorch.load(f)"),
    (data_is_not_code, "loaders/a.py", "import torch\ntorch.load(f, weights_only=False)"),
    (data_is_not_code, "loaders/a.py", "import numpy as np\nnp.load(f, allow_pickle=True)"),
    (tensors_name_dtype_and_device, "loaders/a.py", "import torch\ntorch.empty(3, dtype=torch.uint8)"),
    (tensors_name_dtype_and_device, "pipelines/a.py", "from torch import tensor as t\nt(0.5, device='cpu')"),
    (one_clock, "bench/train/loop.py", "import time\nstart = time.perf_counter()"),
    (one_clock, "bench/train/loop.py", "from time import monotonic as now\nnow()"),
    (one_clock, "bench/train/loop.py", "import time\ndef f(clock=time.time_ns): ..."),
    (module_has_a_caption, "bench/a.py", "x = 1"),
    (module_has_a_caption, "bench/utils.py", '"""Helpers."""'),
    (every_test_asserts, "tests/test_a.py", "def test_a():\n    run()"),
    (every_test_asserts, "tests/test_a.py", "def test_a():\n    assert True"),
    (every_test_asserts, "tests/test_a.py", "class TestA:\n    def test_a(self): loops()\ndef loops(): loops()"),
]
INNOCENT: list[tuple[Check, str, str]] = [
    (import_direction, "bench/a.py", "from penstock.loaders import create_loader\nimport penstock.pipelines.spec"),
    (import_direction, "loaders/a.py", "from penstock.loaders.order.order import x\nfrom penstock.pipelines import y"),
    (
        room_direction,
        "loaders/run/engine/a.py",
        "from penstock.loaders.run.engine.b import x\nimport penstock.pipelines.spec",
    ),
    (room_direction, "loaders/front/create.py", "from penstock.loaders.drop_in.resumable_sampler import x"),
    (room_direction, "bench/cli.py", "from penstock.bench.commands.bench import bench"),
    (backends_are_opened_by_name, "loaders/dali/dali_a.py", "from penstock.loaders.dali.dali_stage import x"),
    (optional_packages_at_home, "loaders/data/cache/hdf5_cache.py", "def f():\n    import h5py"),
    (optional_packages_at_home, "pipelines/sample/dali_graph.py", "def f():\n    from nvidia.dali import fn"),
    (
        optional_packages_lazy,
        "pipelines/sample/decode.py",
        "import torch\nimport simplejpeg\ndef f():\n    import turbojpeg",
    ),
    (optional_packages_lazy, "a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import h5py"),
    (optional_packages_lazy, "a.py", "try:\n    import PIL\nexcept (ImportError, OSError):\n    raise"),
    (file_size, "bench/a.py", "x = 1\n" * 400),
    (function_length, "bench/a.py", LINES_61.removesuffix("    x = 1\n")),
    (data_is_not_code, "bench/a.py", "import torch\ntorch.load(f, weights_only=True)\nregistry.load(f)"),
    (tensors_name_dtype_and_device, "loaders/a.py", "import torch\ntorch.empty(3, dtype=a, device=b)\nempty_like(c)"),
    (tensors_name_dtype_and_device, "bench/a.py", "import torch\ntorch.empty(3)"),
    (one_clock, "bench/record/clock.py", "import time\ntime.perf_counter()"),
    (one_clock, "bench/train/loop.py", "import time\ntime.sleep(1)\nstats.time"),
    (one_clock, "loaders/stats.py", "import time\ntime.monotonic()"),
    (module_has_a_caption, "bench/__init__.py", ""),
    (
        every_test_asserts,
        "tests/test_a.py",
        "def test_a():\n    expect_equal()\ndef expect_equal():\n    assert x == y",
    ),
    (every_test_asserts, "tests/test_a.py", "def test_a():\n    with pytest.raises(ValueError):\n        run()"),
]


@pytest.mark.parametrize(("check", "path", "source"), OFFENCES)
def test_each_offence_is_found(check: Check, path: str, source: str) -> None:
    findings = list(check(Module(path, source)))
    assert len(findings) == 1
    assert findings[0].startswith(path)


@pytest.mark.parametrize(("check", "path", "source"), INNOCENT)
def test_innocent_code_passes(check: Check, path: str, source: str) -> None:
    assert list(check(Module(path, source))) == []


def test_every_check_has_an_offence() -> None:
    assert {check for check, _, _ in OFFENCES} == {*PACKAGE_CHECKS, *TEST_CHECKS}


def test_stale_exemptions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LONG_FILES, "bench/a.py", "it was long once")
    monkeypatch.setitem(LONG_FUNCTIONS, "bench/a.py::f", "it was long once")
    module = Module("bench/a.py", "def f(): ...")
    assert len([*file_size(module), *function_length(module)]) == 2
