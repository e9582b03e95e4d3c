"""Turns the fields of a host batch into tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.run.feed.copies import CopyEngine
from penstock.pipelines.fields.ragged import Ragged, take_rows

# By name: a tensor, a list of tensors, or a list of other objects; of several views tuples of these.
FieldTensors = dict[str, Any]


def send_fields(
    fields: Mapping[str, Any], rows: npt.NDArray[np.intp] | None, device: torch.device, copies: CopyEngine | None
) -> FieldTensors:
    """Return the fields of chosen rows (all for None), arrays as tensors and each Ragged as a list of tensors.

    The tensors of a list are parts of one, which is copied once. copies: of a device that is not the host.
    """

    def send(array: npt.NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if copies is None:
            return tensor
        return copies.pinned(tensor).copy_(tensor).to(device, non_blocking=True)

    def send_value(value: Any) -> Any:
        if isinstance(value, tuple) and not isinstance(value, Ragged):
            return tuple(map(send_value, value))
        kept = value if rows is None else take_rows(value, rows)
        if isinstance(kept, Ragged):
            return list(torch.split(send(kept.parts[0]), kept.lengths.tolist()))
        return send(kept) if isinstance(kept, np.ndarray) else kept

    return {name: send_value(value) for name, value in fields.items()}
