"""Batch: what a loader yields: images, labels and fields, with the random values drawn for each row."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from functools import cached_property
from opcode import opmap
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree

from penstock.loaders.data.sources.contract import Source, sample_name

Own = TypeVar("Own", bound="Batch")
_PAIR = ("images", "labels", "index")  # names of the values that a batch unpacks to; also keys of every batch
_UNPACKING = frozenset((opmap["UNPACK_SEQUENCE"], opmap["UNPACK_EX"]))  # instructions of `images, labels = batch`
_IMAGES = ("images", "patches")  # keys of the images; the second one for a PatchBudget


class Batch:
    """A delivered batch: images, labels and fields, and how each image was made.

    It unpacks as (images, labels), with `with_index=True` as (images, labels, index), and can be indexed by position.
    It is also a mapping: "images", "labels", then each field, then "index". `dict(batch)` and `**batch` work.

    Programs that check types see what they saw before: a batch is a tuple, or with fields, geometry or patches a dict.
    Both unpack, and have the same keys and attributes; `len(batch)`, loops and `list(batch)` are those of the tuple or
    dict. The number of rows is `len(batch.index)`. A program that rebuilds a batch from its parts, type(batch)(parts),
    gets a plain tuple or dict.

    If the loader pads, a batch has `batch_size` rows. Padding rows have index -1 and label -1 (NaN for floats).

    Attributes:
        images: [batch, 3, height, width], channels_last by default, on the loader's device. With several views, a tuple
            of these; the geometry below is then [batch, views, ...]. With size=None, a list of [3, height, width],
            where 3 is the number of channels, and [3, 0, 0] is padding. With a PatchBudget, patches [batch, length,
            patch * patch * 3], with the key "patches".
        labels: int64 [batch] of class numbers; with mixup or cutmix float32 [batch, num_classes]; for sources with
            other labels (see with_labels) a tensor, or a dict of tensors by name. On the loader's device. Data with
            texts (see text=) and without labels has none: the batch then unpacks as (images, texts), and this is None.
        fields: the source's other data by name; see with_fields. A PatchBudget adds patch_coord, int64 [batch, length,
            2], row and column of each patch, and patch_valid, bool [batch, length], False for padding.
            with_geometry=True adds `geometry`, a Geometry, or with several views a tuple of these.
        index: int64 [batch], positions in the sorted source: an array on the host. batch["index"] is a tensor.
        windows: int32 [batch, 4], crops as (x, y, width, height) in the image as read (upright if exif="apply"), in
            pixels; for a cache of downscaled images, in these. With resize_first, the whole image.
        flips: bool [batch], whether the image is mirrored.
        places: int32 [batch, 4], crops as (x, y, width, height) in the output image, before turn and flip; with
            resize_first of the whole image, which extends beyond the output.
        turns: uint8 [batch], how the image is turned (rows become columns, rows reversed); see BatchPlan.
        epoch: number of the epoch.
        step: number of the step within the epoch.
    """

    index: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    places: npt.NDArray[np.int32]
    turns: npt.NDArray[np.uint8]
    epoch: int
    step: int
    _source: Source  # of the names

    @classmethod
    def _make(cls: type[Own], content: dict[str, Any], about: dict[str, Any]) -> Own:
        """Return a batch with these values by key, and these attributes."""
        raise NotImplementedError

    def _content(self) -> dict[str, Any]:
        """Return the values by key."""
        raise NotImplementedError

    if TYPE_CHECKING:  # methods of the tuple or dict

        def __getitem__(self, key: Any) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...

    def keys(self) -> KeysView[str]:
        return self._content().keys()

    def values(self) -> ValuesView[Any]:
        return self._content().values()

    def items(self) -> ItemsView[str, Any]:
        return self._content().items()

    def get(self, key: str, default: Any = None) -> Any:
        return self._content().get(key, default)

    @property
    def images(self) -> Any:
        return self[0]

    @property
    def labels(self) -> Any:
        return self.get("labels")

    @property
    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._content().items() if name not in (*_PAIR, *_IMAGES)}

    @cached_property
    def names(self) -> list[str]:
        """Name of each sample in its source, "" for padding. They are looked up when they are first read."""
        if not hasattr(self, "_source"):
            raise ValueError("a copied or unpickled batch knows the names of its own samples only")
        return [os.fsdecode(sample_name(self._source, index)) if index >= 0 else "" for index in self.index.tolist()]

    if not TYPE_CHECKING:  # an annotated __getattr__ would hide wrong names from programs that check types

        def __getattr__(self, name: str) -> Any:
            known = ", ".join(self._content())
            fix = f"read batch[{name!r}]" if name in self._content() else f"its keys are {known}"
            raise AttributeError(f"a batch has no attribute {name!r}: {fix}", name=name, obj=self)

    def replace(self: Own, **changes: Any) -> Own:
        """Return the batch with other values of keys, such as "boxes", or of attributes."""
        content, about = self._content(), dict(vars(self))
        for name, value in changes.items():
            key = _images_key(content) if name == "images" else name
            if key not in content and key not in about:
                raise ValueError(f"a batch has no {name!r} to replace, only {', '.join(content)} and attributes")
            (content if key in content else about)[key] = value
        if "index" in changes:
            about["index"] = np.ascontiguousarray(changes["index"])
            about.pop("names", None)
            if "_source" not in about:  # a copy has the names of its own samples only
                known = {-1: "", **dict(zip(self.index.tolist(), self.names, strict=True))}
                if known.keys() >= set(about["index"].tolist()):
                    about["names"] = [known[index] for index in about["index"].tolist()]
            content |= {"index": torch.from_numpy(about["index"])} if "index" in content else {}
        return self._make(content, about)

    def as_dict(self, *, with_index: bool) -> dict[str, Any]:
        """Return the values by key, with or without "index"."""
        content = {name: value for name, value in self._content().items() if name != "index"}
        return content | ({"index": torch.from_numpy(self.index)} if with_index else {})

    def to(self: Own, device: Any = None, dtype: torch.dtype | None = None, *, non_blocking: bool = False) -> Own:
        """Return the batch with its tensors on `device`; attributes such as index and geometry stay on the host.

        dtype: for floating point images; labels and coordinates keep theirs.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            return move(tensor).to(dtype) if tensor.is_floating_point() else move(tensor)

        return self._map(move, move if dtype is None else convert)

    def pin_memory(self: Own) -> Own:
        """Return the batch with its tensors in page-locked memory; those on a device stay as they are."""

        def pin(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.pin_memory() if tensor.device.type == "cpu" else tensor

        return self._map(pin, pin)

    def _map(self: Own, change: Callable[[Any], Any], change_images: Callable[[Any], Any]) -> Own:
        content = self._content()
        of = {name: change_images if name in _IMAGES else change for name in content}
        return self._make({name: _map_tensors(of[name], value) for name, value in content.items()}, vars(self))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_describe(value)}" for name, value in self._content().items())
        return f"Batch({values}; epoch {self.epoch}, step {self.step})"

    def __reduce_ex__(self, _: Any) -> tuple[object, ...]:
        _ = self.names  # a source may not be sent to another process
        about = {name: value for name, value in vars(self).items() if name != "_source"}
        return type(self)._make, (self._content(), about)


class _TupleBatch(Batch, tuple[Any, ...]):  # type: ignore[misc]  # the attribute index hides the method of tuples
    """A batch of images and labels only: a tuple."""

    def __new__(cls, parts: Any = ()) -> Any:
        return tuple(parts)  # made by another program, without the attributes of a batch

    @classmethod
    def _make(cls, content: dict[str, Any], about: dict[str, Any]) -> _TupleBatch:
        batch = tuple.__new__(cls, content.values())
        batch.__dict__.update(about)
        return batch

    def _content(self) -> dict[str, Any]:
        return dict(zip(_PAIR, self, strict=False))

    def __getitem__(self, key: Any) -> Any:
        return _look_up(self._content(), key) if isinstance(key, str) else tuple.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self._content() if isinstance(key, str) else tuple.__contains__(self, key)


class _DictBatch(Batch, dict[str, Any]):  # type: ignore[misc]  # the same views of keys and values
    """A batch with fields, geometry or patches: a dict that unpacks as images and labels."""

    def __new__(cls, *parts: Any, **named: Any) -> Any:
        return dict(*parts, **named)  # made by another program, without the attributes of a batch

    @classmethod
    def _make(cls, content: dict[str, Any], about: dict[str, Any]) -> _DictBatch:
        batch: _DictBatch = dict.__new__(cls)
        dict.update(batch, content)
        batch.__dict__.update(about)
        return batch

    def _content(self) -> dict[str, Any]:
        return dict(dict.items(self))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys, as a dict does; an assignment such as `images, labels = batch` gets the values.

        Both are calls of this method, so the caller's instruction decides. Where it is not known, as in compiled code,
        a batch is a dict like any other, and such an assignment fails because of the number or the type of its values.
        """
        return iter(self._unpacked()) if _unpacks(sys._getframe(1)) else dict.__iter__(self)

    def _unpacked(self) -> tuple[Any, ...]:
        second = "labels" if "labels" in self else "text"
        pair = dict.__getitem__(self, _images_key(self)), dict.__getitem__(self, second)
        return (*pair, dict.__getitem__(self, "index")) if "index" in self else pair

    def __getitem__(self, key: Any) -> Any:
        return self._unpacked()[key] if isinstance(key, (int, slice)) else _look_up(self, key)


def make_batch(content: dict[str, Any], about: dict[str, Any], *, is_dict: bool) -> Batch:
    """Return a batch: its values by key, and its attributes by name."""
    return (_DictBatch if is_dict else _TupleBatch)._make(content, about)


def _unpacks(caller: types.FrameType) -> bool:
    """Return whether the current instruction of a function assigns the elements of an iterable to several names."""
    code, at = caller.f_code.co_code, caller.f_lasti
    return 0 <= at < len(code) and code[at] in _UNPACKING


def _images_key(content: dict[str, Any]) -> str:
    return "patches" if "patches" in content else "images"


def _look_up(content: dict[str, Any], key: Any) -> Any:
    """Return the value of a key. Raises KeyError, and TypeError for a key that is not a name."""
    if not isinstance(key, str):
        raise TypeError(f"a batch is indexed by names and by positions, got {type(key).__name__}")
    value = dict.get(content, key, content)
    if value is not content:
        return value
    known = ", ".join(content.keys())
    hint = "; pass with_index=True, or read batch.index" if key == "index" else ""
    hint = f"; it is an attribute: batch.{key}" if key in Batch.__annotations__ and not hint else hint
    raise KeyError(f"{key!r} is not in this batch, which has {known}{hint}")


def _map_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to a tensor, or to those in tuples, lists and dicts; other values stay."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _map_tensors(function, part) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)([_map_tensors(function, part) for part in value])
    return value


def _describe(value: Any) -> str:
    """Return dtype, shape and device of a value; dimensions that differ within a list are *."""
    if isinstance(value, torch.Tensor):
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{device}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_describe(part)}" for name, part in value.items()) + "}"
    if not isinstance(value, (tuple, list)) or not value:
        return type(value).__name__
    kinds = {(type(part), getattr(part, "ndim", 0)) for part in value}
    if len(kinds) > 1 or not isinstance(value[0], torch.Tensor):
        return f"{len(value)} x {type(value[0]).__name__}"
    sides = zip(*(part.shape for part in value), strict=True)
    shape = [str(each[0]) if len(set(each)) == 1 else "*" for each in sides]
    text, bracket, _ = _describe(value[0]).partition("[")
    return f"{len(value)} x {text}{bracket}{', '.join(shape)}]"


class _Rest:
    """What a tree of tensors keeps of a batch: keys and attributes. Batches with equal keys have the same structure."""

    def __init__(self, names: tuple[str, ...], about: dict[str, Any]) -> None:
        self.names, self.about = names, about

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return repr(self.names)


def _register(kind: type[Batch]) -> None:
    """Let torch's functions on trees of tensors (tree_map, FSDP2) see the values of a batch and return a batch."""

    def flatten(batch: Any) -> tuple[list[Any], _Rest]:
        content = batch._content()
        return list(content.values()), _Rest(tuple(content.keys()), vars(batch))

    def flatten_with_keys(batch: Any) -> tuple[list[tuple[Any, Any]], _Rest]:
        values, rest = flatten(batch)
        return list(zip(map(pytree.MappingKey, rest.names), values, strict=True)), rest

    def unflatten(values: Any, rest: Any) -> Batch:
        return kind._make(dict(zip(rest.names, values, strict=True)), rest.about)

    pytree.register_pytree_node(kind, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)


_register(_TupleBatch)
_register(_DictBatch)
