"""How a storage is accessed: options of all requests of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.pipelines.messages.checked import checked_number


@dataclass(frozen=True, kw_only=True)
class Access:
    """Options of all requests for the objects of a data set.

    Attributes:
        retry_s: seconds for which a request that fails temporarily is repeated.
    """

    retry_s: float = 300.0

    def __post_init__(self) -> None:
        checked_number("retry_s", self.retry_s, 0)

    @staticmethod
    def among(options: Mapping[str, Any]) -> Access:
        """Return the access in the options of an opener; None means that an option was not given."""
        names = (field.name for field in fields(Access))
        return Access(**{name: options[name] for name in names if options.get(name) is not None})


DEFAULT = Access()
