"""Shuffle of blocks of neighbouring samples, then of the samples in a group of blocks, for storage with slow seeks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from penstock.loaders.order.permutation import Index, Permutation, Permutations

_MAX_LANES = 64
# Numbers of the draws of an epoch; windows follow.
_BLOCKS, _FIRST_WINDOW = 1, 2
Steps = TypeVar("Steps", int, Index)  # for one place, or for several


class Windows(NamedTuple):
    """The windows of k places.

    Attributes:
        numbers: number of each window, unique in the epoch, int64 [k].
        starts: first place of each window, int64 [k].
        sizes: number of places in each window, int64 [k].
    """

    numbers: Index
    starts: Index
    sizes: Index


@dataclass(frozen=True)
class BlockSizes:
    """Blocks of different sizes. Two objects are equal if their digests are equal.

    Attributes:
        starts: first sample of each block, and the end of the last block, int64 [blocks + 1].
        digest: hex digest of the sizes.
    """

    starts: Index = field(compare=False)
    digest: str

    @classmethod
    def of(cls, sizes: Index) -> BlockSizes:
        """Return the blocks with these numbers of samples, int64 [blocks], without empty blocks."""
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[sizes > 0], dtype=np.int64)])
        return cls(starts, hashlib.blake2b(starts.data, digest_size=8).hexdigest())


@dataclass(frozen=True)
class Lanes:
    """A distribution of an epoch's positions to lanes. Lane l has the places [l * length, (l+1) * length).

    Position p is in lane p % count. The remainder is the tail; its places follow those of the lanes. The tail is
    spread over the epoch, `spread` of its positions after each `turns * count` positions of the lanes, because on its
    own it would mix few blocks.

    Attributes:
        n: number of positions.
        count: number of lanes.
        length: number of places per lane.
    """

    n: int
    count: int
    length: int

    @property
    def num_main(self) -> int:
        """Number of places of all lanes; the places of the tail follow."""
        return self.count * self.length

    @property
    def _rhythm(self) -> tuple[int, int, int]:
        """Turns of the lanes and positions of the tail per repetition, and the number of repetitions.

        The last repetition may be shorter.
        """
        tail = self.n - self.num_main
        if not tail:
            return max(1, self.length), 0, 0
        times = max(1, min(tail, self.length))
        spread = -(-tail // times)
        return self.length // times, spread, -(-tail // spread)

    def _start_of(self, times: Index) -> Index:
        """Return the position after `times` repetitions."""
        turns, spread, _ = self._rhythm
        starts: Index = times * turns * self.count + np.minimum(times * spread, self.n - self.num_main)
        return starts

    def _find(self, positions: Index) -> tuple[Index, Index]:
        """Return the number of repetitions before each position, and its distance from their end."""
        turns, spread, most = self._rhythm
        end = self._start_of(np.array([most], np.int64))  # of the last repetition, which may be shorter
        times = np.where(positions < end, positions // (turns * self.count + spread), most)
        return times, positions - self._start_of(times)

    def places_at(self, positions: Index) -> Index:
        """Return the place of each position, both int64 [k]."""
        turns, spread, most = self._rhythm
        times, offsets = self._find(positions)
        in_tail = (times < most) & (offsets >= turns * self.count)
        of_tail = self.num_main + times * spread + offsets - turns * self.count
        of_lanes = positions % self.count * self.length + times * turns + offsets // self.count
        places: Index = np.where(in_tail, of_tail, of_lanes)
        return places

    def turns_before(self, position: int) -> int:
        """Return the number of the turn of all lanes that contains `position`."""
        turns, _, most = self._rhythm
        times, offsets = self._find(np.array([position], np.int64))
        offset = int(offsets[0]) // self.count
        return int(times[0]) * turns + (min(offset, turns - 1) if times[0] < most else offset)

    def start_of_turn(self, turn: int) -> int:
        """Return the position at which a turn of all lanes begins; n after the last."""
        turns, _, most = self._rhythm
        times = min(turn // max(1, turns), most)
        return int(self._start_of(np.array([times], np.int64))[0]) + (turn - times * turns) * self.count


class EvenLayout:
    """A layout of equal blocks, end to end in their shuffled order; each lane has whole blocks.

    The tail consists of the short block at the end of the source, and of full blocks that do not fill a round of all
    lanes. It does not belong to a window of the lanes, although its positions are among theirs.
    """

    def __init__(self, n: int, block: int, num_lanes: int, blocks_mixed: int, shuffled: Permutation | None) -> None:
        """Mix groups of `blocks_mixed` blocks in each lane. `shuffled`: order of the full blocks.

        The windows of a lane differ by at most one block, so that the last one is not much smaller.
        """
        self._block, self._full, self._shuffled = block, n // block, shuffled
        self._rounds = self._full // num_lanes
        self._num_windows = -(-self._rounds // blocks_mixed)
        self.lanes = Lanes(n, num_lanes, self._rounds * block)

    def _window_of(self, steps: Steps) -> tuple[Steps, Steps, Steps]:
        """Return the window of each step of a lane, its first step, and its end; for numbers or arrays."""
        window = ((steps // self._block + 1) * self._num_windows - 1) // max(1, self._rounds)
        first, end = (number * self._rounds // max(1, self._num_windows) for number in (window, window + 1))
        return window, first * self._block, end * self._block

    def windows_at(self, places: Index) -> Windows:
        """Return the window of each place, int64 [k]."""
        lanes, steps = np.divmod(places, max(1, self.lanes.length))
        windows, first, end = self._window_of(steps)
        in_tail, num_main = places >= self.lanes.num_main, self.lanes.num_main
        return Windows(
            np.where(in_tail, self.lanes.count * self._num_windows, lanes * self._num_windows + windows),
            np.where(in_tail, num_main, lanes * self.lanes.length + first),
            np.where(in_tail, self.lanes.n - num_main, end - first),
        )

    def samples_at(self, places: Index) -> Index:
        """Return the samples at `places` before they are mixed."""
        blocks, offsets = np.divmod(places, self._block)
        mapped = np.full(len(places), self._full, np.int64)  # the short block stays last
        if self._shuffled is not None:
            is_full = blocks < self._full
            mapped[is_full] = self._shuffled(blocks[is_full])
        return mapped * self._block + offsets

    def span_at(self, position: int) -> tuple[int, int] | None:
        """Return the range (first, end) of positions that are mixed with `position`, including those of the tail."""
        if not self._rounds:
            return 0, self.lanes.n
        _, first, end = self._window_of(self.lanes.turns_before(position))
        return self.lanes.start_of_turn(first), self.lanes.start_of_turn(end)


class UnevenLayout:
    """A layout of blocks of several sizes, end to end in their shuffled order, cut into lanes of equal length.

    The memory grows with the number of blocks. A block that crosses the end of a lane belongs to both lanes.
    """

    def __init__(self, sizes: BlockSizes, num_lanes: int, blocks_mixed: int, shuffled: Permutation) -> None:
        """Mix groups of `blocks_mixed` blocks in each lane. `shuffled`: order of the blocks."""
        n, num_blocks = int(sizes.starts[-1]), len(sizes.starts) - 1
        self._source_starts = sizes.starts
        self._order = shuffled(np.arange(num_blocks, dtype=np.int64))
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(sizes.starts)[self._order])])
        self.lanes = Lanes(n, num_lanes, n // num_lanes)
        self._edges = self._cut_windows(blocks_mixed)

    def _cut_windows(self, blocks_mixed: int) -> Index:
        """Return the first places of all windows, and n. A window begins every `blocks_mixed` blocks of a lane."""
        ends = np.arange(self.lanes.count + 1, dtype=np.int64) * self.lanes.length
        starts = self._starts[:-1][self._starts[:-1] < self.lanes.num_main]
        lanes = starts // max(1, self.lanes.length)
        slots_before = np.searchsorted(self._starts, ends, "right") - 1  # the block in which each lane begins
        is_first = (np.arange(len(starts)) - slots_before[lanes]) % blocks_mixed == 0
        return np.unique(np.concatenate([ends, starts[is_first], np.array([self.lanes.n], np.int64)]))

    def windows_at(self, places: Index) -> Windows:
        """Return the window of each place, int64 [k]."""
        numbers = np.searchsorted(self._edges, places, "right") - 1
        starts = self._edges[numbers]
        return Windows(numbers.astype(np.int64), starts, self._edges[numbers + 1] - starts)

    def samples_at(self, places: Index) -> Index:
        """Return the samples at `places` before they are mixed."""
        slots = np.searchsorted(self._starts, places, "right") - 1
        samples: Index = self._source_starts[self._order[slots]] + places - self._starts[slots]
        return samples

    def span_at(self, position: int) -> tuple[int, int] | None:
        """Return None: the windows of the lanes do not begin together."""
        return None


@dataclass(frozen=True, kw_only=True)
class BlockShuffled:
    """Shuffle blocks of the source, distribute them to lanes, and mix the samples within groups of blocks of a lane.

    Position p is served by lane p % lanes. All lanes together mix about `group` blocks at once. Each window of a lane
    is finished before the next one begins, so a block is read once per epoch, and by one rank if a Schedule gives whole
    lanes to ranks. With group = number of blocks every order of the blocks is possible, and nearly every order of the
    samples.

    Attributes:
        n: number of samples.
        seed: seed of the shuffle.
        block: samples per block.
        group: number of blocks that are mixed, in all lanes; rounded down to a multiple of the lanes.
        sizes: samples of each block, instead of `block`.
    """

    n: int
    seed: int
    block: int
    group: int
    sizes: BlockSizes | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.sizes is not None and self.sizes.starts[-1] != self.n:
            raise ValueError(f"blocks must contain n = {self.n} samples, got {self.sizes.starts[-1]}")

    @property
    def lanes(self) -> int:
        """Number of lanes, a power of two: at most 64, and few enough that each mixes at least two blocks."""
        return min(_MAX_LANES, 1 << max(0, self.group.bit_length() - 2))

    @property
    def mixed(self) -> int:
        """Approximate number of samples that are mixed together."""
        return self.group // self.lanes * self.lanes * self.block

    @property
    def name(self) -> str:
        blocks = self.block if self.sizes is None else f"sizes {self.sizes.digest}"
        return f"blocks-2 of {blocks} in groups of {self.group} over {self.lanes} lanes"

    def __call__(self, epoch: int, positions: Index) -> Index:
        layout = _layout(self, epoch)
        places = layout.lanes.places_at(np.asarray(positions, np.int64))
        windows = layout.windows_at(places)
        mix = Permutations.of_epoch(windows.sizes, self.seed, epoch, _FIRST_WINDOW + windows.numbers)
        return layout.samples_at(windows.starts + mix(places - windows.starts))

    def span_at(self, epoch: int, position: int) -> tuple[int, int] | None:
        """Return the range (first, end) of positions that are mixed with `position`; None if they are not one range."""
        return _layout(self, epoch).span_at(position)


@lru_cache(maxsize=4)
def _layout(order: BlockShuffled, epoch: int) -> EvenLayout | UnevenLayout:
    num_blocks = order.n // order.block if order.sizes is None else len(order.sizes.starts) - 1
    shuffled = Permutation.of_epoch(num_blocks, order.seed, epoch, _BLOCKS) if num_blocks else None
    mixed = order.group // order.lanes
    if order.sizes is None:
        return EvenLayout(order.n, order.block, order.lanes, mixed, shuffled)
    assert shuffled is not None
    return UnevenLayout(order.sizes, order.lanes, mixed, shuffled)
