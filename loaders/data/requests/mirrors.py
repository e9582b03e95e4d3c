"""Tags that the servers of one address use for one object at the same time."""

from __future__ import annotations

from collections.abc import Callable

from penstock.loaders.data.samples.version import MIRROR_LOOKS, Version


class Mirrors:
    """Learns which versions are the same object on different mirrors.

    A version with another tag, but the size and time of the indexed one, is that of a mirror only if the indexed tag
    is still served as well; otherwise the object was replaced, and the new one has the time of the old.
    """

    def __init__(self) -> None:
        self._same = set[tuple[int, int]]()  # numbers of versions

    def are_known(self, indexed: Version, found: Version) -> bool:
        """Return whether two versions are equal, or were found on mirrors."""
        return indexed.number == found.number or (indexed.number, found.number) in self._same

    def are_one(self, indexed: Version, found: Version, look: Callable[[], Version]) -> bool:
        """Return whether two versions are one object; `look` asks for its version, from a mirror of its choice."""
        if self.are_known(indexed, found):
            return True
        if indexed.agrees(found) and any(look().number == indexed.number for _ in range(MIRROR_LOOKS)):
            self._same.add((indexed.number, found.number))
            return True
        return False
