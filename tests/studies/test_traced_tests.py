"""Which tests ran a line, and the order in which they are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from coverage import CoverageData
from traced_tests import TracedTests

MODULE = """LIMIT = 4


def clip(value):
    if value > LIMIT:
        return min(
            value,
            LIMIT,
        )
    return value


def other():
    return 1
"""
TESTS = {"test_a.py::test_slow": 2.0, "test_a.py::TestB::test_quick[x::y]": 0.5, "test_a.py::test_other": 1.0}


@pytest.fixture
def traced(tmp_path: Path) -> TracedTests:
    (tmp_path / "m.py").write_text(MODULE, encoding="utf-8")
    data = CoverageData(basename=str(tmp_path / "ran"))
    slow, quick, other = TESTS
    for context, lines in (
        ("", [1, 4, 13]),
        (f"{slow}|run", [5, 6, 7]),
        (f"{quick}|setup", [5, 10]),
        (f"{other}|run", [14]),
    ):
        data.set_context(context)
        data.add_lines({str(tmp_path / "m.py"): lines})
    data.write()
    names = [("test_a", "test_slow"), ("test_a.TestB", "test_quick[x::y]"), ("test_a", "test_other")]
    cases = [
        f'<testcase classname="{place}" name="{name}" time="{seconds}"/>'
        for (place, name), seconds in zip(names, TESTS.values(), strict=True)
    ]
    (tmp_path / "times.xml").write_text(f"<testsuites>{''.join(cases)}</testsuites>", encoding="utf-8")
    return TracedTests(tmp_path, tmp_path / "ran", tmp_path / "times.xml")


def test_a_line_names_the_tests_that_ran_it_the_shortest_first(traced: TracedTests) -> None:
    slow, quick, other = TESTS
    assert traced.of("m.py", 5) == [quick, slow]
    assert traced.of("m.py", 10) == [quick]
    assert traced.of("m.py", 14) == [other]


def test_a_line_that_no_test_ran_by_itself_counts_as_run_with_what_is_around_it(traced: TracedTests) -> None:
    slow, quick, other = TESTS
    assert traced.of("m.py", 8) == [slow]  # of the same statement
    assert traced.of("m.py", 4) == [quick, slow]  # the function's own line: its body
    assert traced.of("m.py", 1) == [quick, other, slow]  # a constant: whatever uses the module


def test_a_test_without_a_record_of_its_time_comes_last(traced: TracedTests) -> None:
    assert [traced.seconds(test) for test in TESTS] == list(TESTS.values())
    assert traced.seconds("test_a.py::test_unknown") == float("inf")
