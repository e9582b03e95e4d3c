"""One batch object: every loader's batches unpack, are mappings, have attributes, move, pin and pickle."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from memory_source import MemorySource
from torch.utils import _pytree as pytree
from torch.utils.data._utils.pin_memory import pin_memory

from penstock.loaders import Batch, Boxes, PatchBudget, create_loader, with_fields, with_labels
from penstock.pipelines import imagenet_eval, imagenet_train

COUNT = 10
ARRAYS = np.random.default_rng(3).integers(0, 256, (COUNT, 8, 8, 3), np.uint8), np.arange(COUNT) % 3


def fields() -> dict[str, Any]:
    corners = [np.array([[1, 1, 5, 5]] * (number % 3), np.float32).reshape(-1, 4) for number in range(COUNT)]
    classes = [[0] * (number % 3) for number in range(COUNT)]
    texts = [f"number {number}" for number in range(COUNT)]
    return {"boxes": Boxes(corners, classes, names=["thing"]), "mask": np.ones((COUNT, 8, 8), np.uint8), "text": texts}


# name -> (data, options, keys besides images, labels and index)
KINDS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "plain": (lambda: ARRAYS, {}, []),
    "named labels": (lambda: with_labels(ARRAYS, {"age": np.arange(COUNT) / 2, "kind": list("ab" * 5)}), {}, []),
    "mixed labels": (lambda: ARRAYS, {"pipeline": imagenet_train(8, mixup=1.0)}, []),
    "views": (lambda: ARRAYS, {"pipeline": [imagenet_train(8), imagenet_train(4)]}, []),
    "fields": (lambda: with_fields(ARRAYS, **fields()), {}, ["boxes", "boxes_classes", "mask", "text"]),
    "fields of views": (
        lambda: with_fields(ARRAYS, **fields()),
        {"pipeline": [imagenet_train(8), imagenet_train(4)]},
        ["boxes", "boxes_classes", "mask", "text"],
    ),
    "geometry": (lambda: ARRAYS, {"with_geometry": True}, ["geometry"]),
    "patches": (
        lambda: ARRAYS,
        {"patches": PatchBudget(size=4, sequence_lengths=(4,))},
        ["patch_coord", "patch_valid"],
    ),
}
ATTRIBUTES = ("index", "windows", "flips", "places", "turns", "epoch", "step")


def open_kind(kind: str, **options: Any) -> Any:
    data, own, _ = KINDS[kind]
    defaults: dict[str, Any] = {"pipeline": imagenet_eval(8), "batch_size": 4, "workers": 0, "seed": 1}
    return create_loader(data(), **{**defaults, **own, **options})


def first_batch(kind: str, **options: Any) -> Batch:
    with open_kind(kind, **options) as loader:
        return next(iter(loader))


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, including types, dtypes and shapes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one.keys())  # noqa: SIM118
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) if isinstance(one, (int, str)) else equal(vars(one), vars(other))


def same_batch(one: Batch, other: Batch) -> bool:
    attributes = all(equal(getattr(one, name), getattr(other, name)) for name in (*ATTRIBUTES, "names"))
    return type(one) is type(other) and attributes and equal(dict(one), dict(other))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["", "with_index"])
def with_index(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_batch_unpacks_and_is_a_mapping(kind: str, with_index: bool) -> None:
    batch = first_batch(kind, with_index=with_index)
    first = "patches" if kind == "patches" else "images"
    keys = [first, "labels", *KINDS[kind][2], *["index"] * with_index]
    assert isinstance(batch, Batch)
    images, labels, *index = batch
    assert images is batch.images is batch[first] is batch[0] is batch[:1][0]
    assert labels is batch.labels is batch["labels"] is batch[1] is batch[: 1 + 1][-1]
    assert len(index) == with_index
    if with_index:
        assert index[0] is batch["index"] is batch[2] is batch[-1]
        assert torch.equal(index[0], torch.from_numpy(batch.index))
    with pytest.raises(IndexError):
        batch[2 + with_index]
    assert [*batch.keys()] == keys
    assert [name for name, _ in batch.items()] == keys
    assert all(value is batch[name] for name, value in batch.items())
    assert list(batch.as_dict(with_index=False)) == [name for name in keys if name != "index"]
    assert list(batch.as_dict(with_index=True)) == [*keys, *["index"] * (not with_index)]
    assert batch.get("labels") is labels
    assert batch.get("absent") is None
    assert batch.get("absent", 3) == 3
    assert "labels" in batch
    assert "absent" not in batch
    assert all(type(each) is dict and list(each) == keys for each in (dict(batch), {**batch}, dict(**batch)))
    assert all({**batch}[name] is batch[name] for name in keys)
    assert list(batch.fields) == KINDS[kind][2]
    assert (batch.epoch, batch.step) == (0, 0)


def test_programs_that_check_types_see_a_tuple_or_with_fields_a_dict(kind: str, with_index: bool) -> None:
    batch = first_batch(kind, with_index=with_index)
    has_fields = bool(KINDS[kind][2])
    assert (isinstance(batch, tuple), isinstance(batch, dict)) == (not has_fields, has_fields)
    rebuilt: Any = type(batch)(dict(batch.items()) if has_fields else (part for part in batch))
    assert type(rebuilt) is (dict if has_fields else tuple)
    assert len(rebuilt) == len(batch) == (len(batch.keys()) if has_fields else 2 + with_index)
    if has_fields:  # as torch's DistributedDataParallel rebuilds a dict
        assert type(type(batch)(tuple(batch.items()))) is dict
        batch["boxes"] = 3
        assert batch.fields["boxes"] == batch["boxes"] == 3


def test_what_a_batch_does_not_have_is_refused() -> None:
    plain, full = first_batch("plain"), first_batch("fields")
    with pytest.raises(KeyError, match="'boxes' is not in this batch, which has images, labels"):
        plain["boxes"]
    with pytest.raises(KeyError, match=r"'index' is not in .* pass with_index=True, or read batch\.index"):
        full["index"]
    with pytest.raises(KeyError, match=r"'windows' is not in .* it is an attribute: batch\.windows"):
        full["windows"]
    with pytest.raises(AttributeError):
        plain.images = plain.images  # type: ignore[misc]
    with pytest.raises(ValueError, match="a batch has no 'boxes' to replace, only images, labels"):
        plain.replace(boxes=None)
    with pytest.raises(TypeError, match="a batch is indexed by names and by positions, got Tensor"):
        full[full.images]


def test_loops_see_the_tuple_or_with_fields_the_keys_of_the_dict(kind: str, with_index: bool) -> None:
    batch = first_batch(kind, with_index=with_index)
    expected = list(batch.keys()) if KINDS[kind][2] else [batch[number] for number in range(2 + with_index)]
    found: Any = [list(batch), tuple(batch), [*batch], [each for _, each in enumerate(batch)], list(iter(batch))]
    assert all(len(one) == len(expected) and all(map(operator.is_, one, expected)) for one in found)
    if KINDS[kind][2]:
        assert all(value is batch[name] for name, value in {name: batch[name] for name in batch}.items())
    for images, *rest in [batch]:  # an assignment to several names, in every form
        assert images is batch.images
        assert rest[0] is batch.labels
    for _, (images, _labels, *_) in enumerate([batch]):
        assert images is batch.images
    assert all(images is batch.images for images, *_ in [batch])


def test_a_batch_pickles_and_is_copied(kind: str, with_index: bool) -> None:
    batch = first_batch(kind, with_index=with_index)
    for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), copy.copy(batch)):
        assert same_batch(batch, again)
    assert pickle.loads(pickle.dumps(batch)).images is not batch.images


def test_a_batch_moves_with_all_of_its_tensors(kind: str, with_index: bool) -> None:
    batch = first_batch(kind, with_index=with_index)
    assert same_batch(batch, batch.to("cpu", non_blocking=True))
    assert same_batch(batch, batch.to(None))
    moved = batch.to("meta")
    assert type(moved) is type(batch)
    tensors = [each for each in pytree.tree_leaves(dict(moved)) if isinstance(each, torch.Tensor)]
    assert len(tensors) >= 2 + with_index
    assert all(each.device.type == "meta" for each in tensors)
    assert all(equal(getattr(moved, name), getattr(batch, name)) for name in (*ATTRIBUTES, "names"))
    half = batch.to("cpu", torch.bfloat16)
    assert {each.dtype for each in pytree.tree_leaves(half.images)} == {torch.bfloat16}
    assert equal({**dict(half), "images": 0, "patches": 0}, {**dict(batch), "images": 0, "patches": 0})
    assert same_batch(half, batch.to(torch.bfloat16))


def test_a_batch_is_pinned(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning needs an accelerator, so a stand-in counts the tensors."""
    batch, pinned = first_batch(kind, with_index=True), []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    again = pin_memory(batch)  # torch's own, as the DataLoader calls it
    assert same_batch(batch, again)
    assert len(pinned) == sum(isinstance(each, torch.Tensor) for each in pytree.tree_leaves(dict(batch)))
    pinned.clear()
    batch.to("meta").pin_memory()
    assert not pinned


def test_torch_sees_a_tree_of_tensors(kind: str, with_index: bool) -> None:
    batch, other = (first_batch(kind, with_index=with_index, seed=seed) for seed in (1, 2))
    leaves, structure = pytree.tree_flatten(batch)
    assert same_batch(batch, pytree.tree_unflatten(leaves, structure))
    assert next(str(path[0]) for path, _ in pytree.tree_flatten_with_path(batch)[0]) in ("['images']", "['patches']")
    moved = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), batch)
    assert type(moved) is type(batch)
    assert moved.index is batch.index
    if not KINDS[kind][2]:
        assert structure == pytree.tree_structure(other)
        both = pytree.tree_map(lambda one, two: (one + two).sum(), batch, other)
        assert torch.equal(both.labels if kind != "named labels" else both.labels["age"], sum_of_labels(batch, other))


def sum_of_labels(*batches: Batch) -> torch.Tensor:
    labels = [batch.labels["age"] if isinstance(batch.labels, dict) else batch.labels for batch in batches]
    return (labels[0] + labels[1]).sum()


def test_rows_of_a_copied_batch_keep_their_names() -> None:
    for batch in (copy.copy(first_batch("plain")), pickle.loads(pickle.dumps(first_batch("fields", with_index=True)))):
        other = batch.replace(index=np.append(batch.index, -1)[::-1])
        assert other.names == ["", *batch.names[::-1]]
        with pytest.raises(ValueError, match="the names of its own samples only"):
            _ = batch.replace(index=[batch.index.max() + 1]).names


def test_values_are_replaced() -> None:
    for kind in KINDS:
        batch = first_batch(kind, with_index=True)
        _ = batch.names
        other = batch.replace(images=3, labels=4, step=7, index=np.array([5, -1]))
        assert (other.images, other.labels, other.step, other.epoch) == (3, 4, 7, 0)
        assert other[0] == 3
        assert other["index"].tolist() == other.index.tolist() == [5, -1]
        assert other.names == ["array[5]", ""] != batch.names
        assert type(other) is type(batch)
        assert batch.labels is not other.labels


def test_names_are_looked_up_when_they_are_read() -> None:
    class Named(MemorySource):
        asked = 0

        def path(self, index: int) -> bytes:
            self.asked += 1
            return b"photo %d \xff" % index

    source = Named(list(ARRAYS[0]))
    with create_loader(source, pipeline=imagenet_eval(8), batch_size=4, workers=0, pad=True) as loader:
        before = source.asked
        batches = list(loader)
        assert source.asked == before
        assert batches[-1].names == ["photo 8 \udcff", "photo 9 \udcff", "", ""]
        assert source.asked == before + 2
        _ = batches[-1].names
        assert source.asked == before + 2


def test_a_batch_shows_its_shapes() -> None:
    text = repr(first_batch("fields", with_index=True))
    assert text == (
        "Batch(images=float32 [4, 3, 8, 8], labels=int64 [4], boxes=4 x float32 [*, 4], boxes_classes=4 x int64 [*], "
        "mask=uint8 [4, 8, 8], text=4 x str, index=int64 [4]; epoch 0, step 0)"
    )
    views = repr(first_batch("views"))
    assert views == "Batch(images=2 x float32 [4, 3, *, *], labels=int64 [4]; epoch 0, step 0)"
    assert "labels={age: float32 [4], kind: int64 [4]}" in repr(first_batch("named labels"))
    assert "geometry=Geometry" in repr(first_batch("geometry"))
    assert "images=float32 [4, 3, 8, 8] on meta" in repr(first_batch("plain").to("meta"))


def test_the_loader_and_batches_yield_the_same() -> None:
    for kind in KINDS:
        with open_kind(kind, with_index=True) as one, open_kind(kind, with_index=True) as other:
            assert all(map(same_batch, one, other.batches()))
