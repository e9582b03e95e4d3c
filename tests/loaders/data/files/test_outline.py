"""A state of other data says which samples are new; states without that part are judged as before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from photo_folder import write_folder

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.data.files import outline as outlines
from penstock.loaders.data.files.outline import explain_other_data, make_outline
from penstock.pipelines import imagenet_eval

OTHER = LoaderError("E-STATE", "the state is of other data: 300 samples then, 300 now")


class Named:
    """As much of a source as an outline reads."""

    def __init__(self, names: list[bytes]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> bytes:
        return self.names[index]


def told(before: list[bytes], after: list[bytes]) -> str:
    old, new = Named(before), Named(after)
    state = json.loads(json.dumps({"outline": make_outline(old)}))  # type: ignore[arg-type]
    error = explain_other_data(OTHER, state, new, make_outline(new))  # type: ignore[arg-type]
    return error.cause.removeprefix(OTHER.cause).removeprefix("; ")


@pytest.mark.parametrize("seed", range(20))
def test_a_few_new_and_lost_samples_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [b"class%d/%d.jpg" % tuple(pair) for pair in rng.integers(0, 10**6, (300, 2))]
    gone, new = (int(count) for count in rng.integers(0, 5, 2))
    more = [b"new/%d.jpg" % number for number in range(new)]
    after = [*more, *(names[at] for at in np.sort(rng.permutation(300)[gone:]))]
    first = ", first 'new/0.jpg'" if new else ""
    expected = f"{new} sample{'s' * (new != 1)} new{first}, {gone} gone"
    if not new and not gone:
        expected = "no name has changed, so files or labels have"
    assert told(names, after) in (expected, "many names have changed")  # the table is small: some cannot be read back
    assert told(names, [*names, b"last.jpg"]) == "1 sample new, first 'last.jpg', 0 gone"


def test_nearly_all_small_changes_are_found() -> None:
    names = [b"%d.jpg" % number for number in range(300)]
    found = [told(names[number % 5 :], [*names, *(b"%d/%d" % (number, n) for n in range(4))]) for number in range(100)]
    assert found.count("many names have changed") <= 5


def test_many_changes_are_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told([b"a%d" % n for n in range(300)], [b"b%d" % n for n in range(300)]) == "many names have changed"
    monkeypatch.setattr(outlines, "MAX_SAMPLES", 299)
    assert make_outline(Named([b"a"] * 300)) is None  # type: ignore[arg-type]


def test_a_state_from_before_is_loaded_or_refused_as_before(tmp_path: Path) -> None:
    folders = [write_folder(tmp_path / name, count) for name, count in (("a", 6), ("b", 7))]
    options = {"pipeline": imagenet_eval(16), "batch_size": 2, "workers": 0}
    with create_loader(folders[0], **options) as loader, create_loader(folders[1], **options) as other:
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(json.dumps(state)) < 3000
        for broken in ("", "!", None, 7, state["outline"][:9]):
            loader.load_state_dict({**state, "outline": broken})  # it only serves to explain a refusal
            with pytest.raises(LoaderError, match="6 samples then, 7 now: fix"):
                other.load_state_dict({**state, "outline": broken})
        del state["outline"]
        loader.load_state_dict(state)
        with pytest.raises(LoaderError, match="6 samples then, 7 now: fix"):
            other.load_state_dict(state)
