"""TracedTests knows which tests ran a line, and how long each took, from one run under coverage.py.

The run is `python -m pytest -n auto --dist loadfile --cov=loaders --cov=pipelines --cov-context=test --cov-report=
--junitxml times.xml tests/loaders tests/pipelines tests/bench`; it leaves `.coverage`, which covers the processes of
the tests themselves but not their workers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from coverage import CoverageData


class TracedTests:
    """Answers which tests ran a line of a module.

    root: root of the tree in which the tests ran.
    data: the file that coverage.py wrote.
    times: JUnit record of the same run.
    """

    def __init__(self, root: Path, data: Path, times: Path) -> None:
        self._root = root.resolve()
        self._data = CoverageData(basename=str(data))
        self._data.read()
        self._seconds = {
            f"{case.attrib['classname']}.{case.attrib['name']}": float(case.attrib["time"])
            for case in ElementTree.parse(times).iter("testcase")
        }

    def of(self, module: str, line: int) -> list[str]:
        """Return the names of the tests that ran a line, the shortest first.

        A line that no test ran directly, such as a constant or the middle of a statement, counts as run with the
        smallest enclosing statement that some test ran.
        """
        text = (self._root / module).read_text(encoding="utf-8")
        ran = self._data.contexts_by_lineno(str(self._root / module))
        for first, last in _spans(ast.parse(text), line):
            tests = {
                context.rpartition("|")[0] for number in range(first, last + 1) for context in ran.get(number, [])
            } - {""}
            if tests:
                return sorted(tests, key=lambda test: (self.seconds(test), test))
        return []

    def seconds(self, test: str) -> float:
        """Return how long a test took; infinity if its run has no record."""
        path, _, name = test.partition("::")
        named, bracket, parameters = name.partition("[")
        key = f"{path.removesuffix('.py').replace('/', '.')}.{named.replace('::', '.')}{bracket}{parameters}"
        return self._seconds.get(key, float("inf"))


def _spans(tree: ast.Module, line: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each statement around a line, the smallest first and the whole module last."""
    around = {
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    }
    last = max((getattr(node, "end_lineno", 0) or 0 for node in tree.body), default=0)
    yield line, line
    yield from sorted(around | {(1, last)}, key=lambda span: span[1] - span[0])
