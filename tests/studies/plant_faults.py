"""Plants faults in the product, one at a time: `python tests/studies/plant_faults.py` lists those that no test notices.

A fault is a small change of one module: an inverted comparison, a negated condition, a removed statement. The tests
that ran its line come first, if the record of a full run under coverage.py is given (traced_tests.py); then the
module's own tests, those of its room, and the contract's. A fault that passes all of them, or those for which there is
time, has survived. Some trees get no fault, as a control: no test may fail there. Each tree is a copy; the process that
forks the tests has imported torch, so that a run takes only the time of its tests.

mutmut 3.8 was tried instead. It needs the package in a folder of its name and ignores files behind a link. It changes
only the bodies of functions. It finds in one process which tests call a function, while here the tests of each line are
known. A sample drawn by a seed, trees without a fault and a time limit per tree would still have to be written.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from rich.progress import Progress
from traced_tests import TracedTests

from penstock.loaders.system.json_file import decode_json, write_json

ROOT = Path(__file__).resolve().parents[2]
GOAL = 0.95  # share of the faults that tests should notice
CONTRACT = (
    "tests/loaders/test_contract.py",
    "tests/loaders/drop_in/test_data_loader.py",
    "tests/loaders/test_trainers.py",
)
CONTROL = -1
LOG = Path("build", "tests.log")
QUICK = 100  # the shortest tests that ran the line, before all others that did

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_EXCHANGED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Describe a fault.

    Attributes:
        module: path of the module within the repository.
        line: its line, counted from 1.
        what: the change in words.
        number: which of the module's possible faults this is, or CONTROL.
    """

    module: str
    line: int
    what: str
    number: int


def possible_faults(module: str, text: str) -> list[Fault]:
    """Return every fault that can be planted in a module with this text."""
    tree = ast.parse(text)
    return [
        Fault(module=module, line=line, what=what, number=number)
        for number, (line, what, _) in enumerate(_changes(tree))
    ]


def planted(text: str, fault: Fault) -> str:
    """Return the module's text with the fault; a control's text is equivalent to the original."""
    tree = ast.parse(text)
    if fault.number == CONTROL:
        return ast.unparse(tree)
    for number, (_, _, change) in enumerate(_changes(tree)):
        if number == fault.number:
            change()
            return ast.unparse(ast.fix_missing_locations(tree))
    raise ValueError(f"{fault.module} has no fault {fault.number}")


def _changes(tree: ast.Module) -> Iterator[tuple[int, str, Any]]:
    """Yield line, description and the function that makes the change, for each change of the tree."""
    waiting: list[ast.AST] = [tree]
    for owner in waiting:
        for name, value in ast.iter_fields(owner):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            waiting += [node for node in (value if isinstance(value, list) else [value]) if isinstance(node, ast.AST)]
            for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.AST):
                    for what, new in _replacements(node):
                        yield getattr(node, "lineno", 0), what, _Replace(owner, name, place, new)


@dataclass(frozen=True)
class _Replace:
    """Replace a node by another one."""

    owner: ast.AST
    field: str
    place: int | None
    new: ast.AST

    def __call__(self) -> None:
        if self.place is None:
            setattr(self.owner, self.field, self.new)
        else:
            getattr(self.owner, self.field)[self.place] = self.new


def _replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield replacements of `node`, each with its description."""
    short = ast.unparse(node).splitlines()[0][:60] if isinstance(node, (ast.expr, ast.stmt)) else ""
    if isinstance(node, ast.Compare):
        new = copy.deepcopy(node)
        new.ops[0] = _TURNED[type(node.ops[0])]()
        yield f"{short} -> {ast.unparse(new)[:60]}", new
    elif isinstance(node, ast.BoolOp):
        flipped = copy.deepcopy(node)
        flipped.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"{short}: and, or exchanged", flipped
    elif isinstance(node, ast.BinOp) and type(node.op) in _EXCHANGED and not _is_text(node):
        other = copy.deepcopy(node)
        other.op = _EXCHANGED[type(node.op)]()
        yield f"{short}: operator exchanged", other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"{short}: not left out", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{short} -> {not node.value}", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield f"{short} -> {node.value + 1}", ast.Constant(node.value + 1)
    elif isinstance(node, ast.If):
        negated = copy.copy(node)
        negated.test = ast.UnaryOp(ast.Not(), node.test)
        yield f"{short} negated", negated
    elif _is_removable(node):
        yield f"left out: {short}", ast.Pass()


def _is_removable(node: ast.AST) -> bool:
    """Return whether the module is valid Python with the same names without the statement."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(part, (ast.JoinedStr, ast.Constant)) and not _is_number(part) for part in (node.left, node.right)
    )


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def nearest_tests(module: str) -> list[list[str]]:
    """Return the test files for a module, each once, nearest first: its own, its room's, then the contract's."""
    path = Path(module)
    imported = f"{'.'.join(path.with_suffix('').parts)} import"
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    own = [test for test in files if test.stem == f"test_{path.stem}" or imported in test.read_text(encoding="utf-8")]
    near = sorted((ROOT / "tests" / path.parent).rglob("test_*.py"))
    groups: list[list[str]] = []
    for group in (own, near, [ROOT / name for name in CONTRACT]):
        names = [str(test.relative_to(ROOT)) for test in group]
        groups.append([name for name in names if not any(name in before for before in groups)])
    return groups


def groups_for(fault: Fault, traced: TracedTests | None) -> list[list[str]]:
    """Return the tests for a fault in the order of their use.

    The names of tests that ran its line, the shortest first and then the nearest, precede those of nearest_tests.
    """
    ran = traced.of(fault.module, fault.line) if traced is not None else []
    nearest = nearest_tests(fault.module)
    places = {test: place for place, group in enumerate(nearest) for test in group}
    longer = sorted(ran[QUICK:], key=lambda test: places.get(test.partition("::")[0], len(nearest)))
    return [ran[:QUICK], longer, *nearest]


class Lane:
    """A copy of the repository in which one fault at a time is planted and tested.

    Attributes:
        fault: the fault under test, or None.
        timed_out: whether the time limit of the last one was reached.
        noticed_by: the name in pytest of the test that failed on the last one; "" for none.
    """

    def __init__(self, folder: Path, plant: Callable[[str, Any], str] = planted) -> None:
        self.folder, self._plant = folder, plant
        self.fault: Fault | None = None
        self.timed_out, self.noticed_by = False, ""
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in names.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        subprocess.run(["make", "-s", "link"], cwd=folder, check=True)

    def start(self, fault: Fault, groups: Sequence[Sequence[str]], limit_s: float) -> None:
        """Plant the fault and start groups of tests with a limit of `limit_s` seconds."""
        self.fault = fault
        (self.folder / fault.module).write_text(self._plant(self._text(fault), fault), encoding="utf-8")
        self.process = multiprocessing.get_context("fork").Process(target=_run, args=(self.folder, groups))
        self.process.start()
        self._deadline = time.monotonic() + limit_s

    def over(self) -> bool:
        """Return whether the tests have ended or reached their limit."""
        return not self.process.is_alive() or time.monotonic() > self._deadline

    def finish(self) -> bool:
        """Remove the fault and all processes of its tests; return whether a test noticed it."""
        assert self.fault is not None
        assert self.process.pid is not None
        self.timed_out = self.process.is_alive()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        told = (self.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        failed = (line for line in told if line.startswith(("FAILED ", "ERROR ")))
        self.noticed_by = next(failed, "").partition(" - ")[0]
        (self.folder / self.fault.module).write_text(self._text(self.fault), encoding="utf-8")
        self.fault = None
        return not self.timed_out and self.process.exitcode != 0

    @staticmethod
    def _text(fault: Fault) -> str:
        return (ROOT / fault.module).read_text(encoding="utf-8")


class Chosen:
    """Lets pytest run the tests of one group, given by name or by file, unless an earlier group ran them."""

    def __init__(self) -> None:
        self.group: set[str] = set()
        self._run = set[str]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names = {item.nodeid: item.nodeid.partition("::")[0] for item in items}
        chosen = {name for name, file in names.items() if name in self.group or file in self.group} - self._run
        items[:] = [item for item in items if item.nodeid in chosen]
        self._run |= chosen


def _run(folder: Path, groups: Sequence[Sequence[str]]) -> None:
    """Run groups of tests on the tree in `folder`, up to the first failure."""
    os.setsid()
    os.chdir(folder)
    linked = str(folder / "build" / "path")
    os.environ["PYTHONPATH"] = linked
    sys.path.insert(0, linked)
    for name in [name for name in sys.modules if name.partition(".")[0] == "penstock"]:
        del sys.modules[name]
    with open(folder / LOG, "w", buffering=1, encoding="utf-8") as log:
        sys.stdout = sys.stderr = log
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        chosen = Chosen()
        for tests in filter(None, groups):
            chosen.group = set(tests)
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--timeout", "120", *files], plugins=[chosen])
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                os._exit(int(code))
    os._exit(0)


def choose(count: int, seed: int, under: Sequence[str]) -> list[Fault]:
    """Choose faults at random, spread over the modules below `under` by the number of their possible faults."""
    faults = [
        fault
        for folder in under
        for path in sorted((ROOT / folder).rglob("*.py"))
        for fault in possible_faults(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    return random.Random(seed).sample(faults, min(count, len(faults)))


def survivors_of(record: Path) -> list[Fault]:
    """Return the faults that survived in a run. Raises ValueError if a module has changed since."""
    faults = [Fault(**fault) for fault in decode_json(record.read_bytes(), dict)["survivors"]]
    for fault in faults:
        if fault not in possible_faults(fault.module, (ROOT / fault.module).read_text(encoding="utf-8")):
            raise ValueError(f"{fault.module} has changed: {fault.line}: {fault.what}")
    return faults


def choose_controls(count: int, faults: Sequence[Fault]) -> list[Fault]:
    """Return controls in the modules of the first `count` faults."""
    return [Fault(module=fault.module, line=0, what="nothing", number=CONTROL) for fault in faults[:count]]


def main(
    count: Annotated[int, typer.Option(help="Faults to plant.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of their choice.")] = 0,
    under: Annotated[list[str] | None, typer.Option(help="Folders to plant in.")] = None,
    lanes: Annotated[int, typer.Option(help="Trees tested at the same time.")] = os.cpu_count() or 1,
    controls: Annotated[int, typer.Option(help="Trees without a fault, tested in addition.")] = 10,
    limit: Annotated[float, typer.Option(help="Seconds per tree; a fault not noticed by then has survived.")] = 300.0,
    ran: Annotated[Path | None, typer.Option(help="Data of coverage.py from a run of the tests.")] = None,
    times: Annotated[Path | None, typer.Option(help="JUnit record of that run.")] = None,
    again: Annotated[Path | None, typer.Option(help="Plant the survivors of this record instead.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the record.")] = None,
) -> None:
    """Plant faults, run the tests that should notice, and list the survivors."""
    import torch  # noqa: F401  every forked test run has it

    if (ran is None) != (times is None):
        raise typer.BadParameter("--ran and --times must be passed together")
    traced = TracedTests(ROOT, ran, times) if ran is not None and times is not None else None
    faults = choose(count, seed, under or ["loaders", "pipelines"]) if again is None else survivors_of(again)
    waiting = list(reversed([*choose_controls(controls, faults), *faults]))
    survivors, false_alarms, started = list[Fault](), list[Fault](), time.monotonic()
    noticed = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder, Progress() as progress:
        task = progress.add_task("faults", total=len(waiting))
        free, busy = [Lane(Path(folder) / str(number)) for number in range(lanes)], list[Lane]()
        while waiting or busy:
            while waiting and free:
                busy.append(free.pop())
                fault = waiting.pop()
                busy[-1].start(fault, groups_for(fault, traced), limit)
            time.sleep(0.05)
            for lane in [lane for lane in busy if lane.over()]:
                tested = lane.fault
                assert tested is not None
                if lane.finish() == (tested.number == CONTROL):
                    (false_alarms if tested.number == CONTROL else survivors).append(tested)
                    number = len(faults) - len(waiting) - len(busy) + 1
                    until = " (time was up)" if lane.timed_out else f" ({lane.noticed_by})" if lane.noticed_by else ""
                    print(f"{number}: {tested.module}:{tested.line}: {tested.what}{until}", flush=True)
                elif tested.number != CONTROL:
                    noticed[lane.noticed_by] += 1
                progress.advance(task)
                busy.remove(lane)
                free.append(lane)
    share = 1 - len(survivors) / max(1, len(faults))
    print(f"{len(faults) - len(survivors)} of {len(faults)} noticed: {share:.3f} (at least {GOAL})")
    print(f"{len(false_alarms)} of {controls} controls failed")
    if json is not None:
        record = {
            "what": "faults planted in the product, one at a time",
            "seed": seed,
            "seconds": round(time.monotonic() - started),
            "faults": len(faults),
            "noticed": len(faults) - len(survivors),
            "noticed_by": noticed,
            "by_folder": Counter(str(Path(fault.module).parent) for fault in faults),
            "controls": controls,
            "false_alarms": [fault.module for fault in false_alarms],
            "survivors": [asdict(fault) for fault in survivors],
        }
        write_json(json, record)


if __name__ == "__main__":
    typer.run(main)
