"""The study of planted faults: what it changes, and which tests it runs."""

from __future__ import annotations

import ast
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import plant_faults
import pytest
import typer
from plant_faults import (
    CONTRACT,
    ROOT,
    Chosen,
    Lane,
    choose_controls,
    groups_for,
    nearest_tests,
    planted,
    possible_faults,
    survivors_of,
)
from traced_tests import TracedTests

from penstock.loaders.system.json_file import write_json

TEXT = """
def clip(value: int | float | None, low: int = 0) -> int | float | None:
    if value < low and not value == 7:
        raise ValueError("out")
    print(value)
    return value + 1
"""


def test_what_ran_is_not_taken_without_its_times(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="--times"):
        plant_faults.main(ran=tmp_path / "of a run")


def test_every_fault_changes_the_module_in_its_own_way() -> None:
    faults = possible_faults("m.py", TEXT)
    texts = {planted(TEXT, fault) for fault in faults}
    assert len(texts) == len(faults)
    assert ast.unparse(ast.parse(TEXT)) not in texts
    told = "\n".join(fault.what for fault in faults)
    for words in ("value <= low", "and, or", "not left out", "left out: raise", "left out: print", "0 -> 1", "negated"):
        assert words in told
    assert "int |" not in told  # a type says nothing to Python
    assert {fault.line for fault in faults} <= {2, 3, 4, 5, 6}


def test_survivors_of_a_record_are_planted_again_where_they_were(tmp_path: Path) -> None:
    module = "loaders/system/json_file.py"
    survived = possible_faults(module, (ROOT / module).read_text(encoding="utf-8"))[1]
    write_json(tmp_path / "a.json", {"survivors": [asdict(survived)]})
    assert survivors_of(tmp_path / "a.json") == [survived]
    write_json(tmp_path / "a.json", {"survivors": [asdict(replace(survived, line=survived.line + 1))]})
    with pytest.raises(ValueError, match="has changed"):
        survivors_of(tmp_path / "a.json")


def test_a_control_says_what_its_module_says() -> None:
    (control,) = choose_controls(1, possible_faults("m.py", TEXT))
    assert ast.dump(ast.parse(planted(TEXT, control))) == ast.dump(ast.parse(TEXT))


def test_a_modules_own_tests_come_first_and_the_contracts_last() -> None:
    groups = nearest_tests("loaders/stream/order.py")
    assert "penstock.loaders.stream.order import" in (ROOT / groups[0][0]).read_text(encoding="utf-8")
    tests = [test for group in groups for test in group]
    assert len(set(tests)) == len(tests)
    assert nearest_tests("loaders/system/needs.py")[-1] == list(CONTRACT)


def test_the_tests_that_ran_the_line_come_before_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    (fault, *_) = possible_faults("loaders/stream/order.py", TEXT)
    monkeypatch.setattr(plant_faults, "QUICK", 2)

    class Traced:
        def of(self, module: str, line: int) -> list[str]:
            far = [f"{module}::{line}::{number}" for number in range(3)]
            return [*far, f"{nearest[1][0]}::test_room", f"{nearest[0][0]}::test_own"]

    nearest = nearest_tests(fault.module)
    first, second, third, room, own = Traced().of(fault.module, fault.line)
    assert groups_for(fault, cast(TracedTests, Traced())) == [[first, second], [own, room, third], *nearest]
    assert groups_for(fault, None) == [[], [], *nearest]


def test_a_lane_names_the_test_that_notices_a_fault_and_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    lane, module = Lane(tmp_path), "loaders/system/json_file.py"
    text = (tmp_path / module).read_text(encoding="utf-8")
    (tmp_path / "tests" / "test_it.py").write_text(
        "from penstock.loaders.system.json_file import T\n\n\ndef test_sound():\n    assert T.__name__ == 'T'\n\n\n"
        "def test_other():\n    assert open('loaders/system/json_file.py').read() == ''\n"
    )
    (fault, *_) = possible_faults(module, text)
    lane.start(fault, [["tests/test_it.py::test_sound"], ["tests/test_it.py"]], 120)
    while not lane.over():
        time.sleep(0.05)
    assert lane.finish()
    assert (lane.noticed_by, lane.timed_out, lane.fault) == ("FAILED tests/test_it.py::test_other", False, None)
    assert (tmp_path / module).read_text(encoding="utf-8") == text


def test_a_test_of_several_groups_runs_once() -> None:
    @dataclass
    class Item:
        nodeid: str

    chosen = Chosen()
    for group, expected in (
        ({"a.py::test_b"}, ["a.py::test_b"]),
        ({"a.py"}, ["a.py::test_a"]),
        ({"a.py", "b.py::test_a"}, []),
    ):
        chosen.group = group
        items = [Item("a.py::test_a"), Item("a.py::test_b")]
        chosen.pytest_collection_modifyitems(cast(list[pytest.Item], items))
        assert [item.nodeid for item in items] == expected
