"""Settings and states that a loader refuses: (a line of code, words of the message), one line for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from mistaken_data import check_message, write_mistakes

from penstock.loaders import Encoding, open_source
from penstock.loaders.cache_build.build import build_cache

SIZES = {
    "loader(buckets=[])": "buckets must be a list of 1 to 256 sizes",
    "loader(buckets=(224, 'a'))": "buckets must be an integer, got 'a'",
    "loader(buckets=[(224, 0)])": "buckets (width) must be from 1 to 16384, got 0",
    "loader(buckets=[(224, 224, 3)])": "buckets must be (height, width)",
    "loader(buckets=[9, (192, 256), (96, 128)])": "must have different aspect ratios, got (192, 256) and (96, 128)",
    "loader(buckets=BUCKETS, sizes={0: 32})": "sizes and buckets cannot be combined",
    "loader(buckets=BUCKETS, pipeline=VIEWS)": "several views cannot be combined with sizes or buckets",
    "loader(buckets=BUCKETS, pipeline=imagenet_train(32, rotate90=0.5))": "a square size, got (24, 40)",
    "loader(buckets=BUCKETS, transform=np.negative)": "one size for all batches|a changing batch_size",
    "loader(buckets=BUCKETS, weights='balanced')": "cannot be combined with shuffle='blocks', weights or mix",
    "loader(buckets=BUCKETS, shuffle=Blocks())": "buckets serve each sample once",
    "create_loader(mix({'a': ('photos', 1.0)}), buckets=BUCKETS)": "buckets serve each sample once",
    "loader(buckets=BUCKETS, batch_size=12)": "of bucket (32, 32) cannot fill a global batch of 12: lower",
    "loader(buckets=BUCKETS, batch_size=3, rank=0, world_size=4)": "cannot fill a global batch of 12",
    "loader(buckets=BUCKETS, pad=False, drop_last=False, rank=0, world_size=2)": "on several ranks need padding",
    "loader(sizes={1: 128})": "sizes needs a value for epoch 0, got {1: 128}",
    "loader(sizes={0: 0})": "sizes must be from 1 to 16384, got 0",
    "loader(batch_size={3: 8})": "batch_size needs a value for epoch 0",
    "loader(batch_size={0: 0})": "batch_size must be at least 1, got 0",
    "loader(batch_size={-1: 8, 0: 8})": "batch_size (epoch) must be from 0 to",
    "loader(batch_size={0: 4, 1: 3}, pipeline=imagenet_train(32, mixup=0.1))": "must be even|got 3",
    "loader(patches=16)": "patches must be a PatchBudget(...), got 16",
    "loader(patches=PATCHES, buckets=[224])": "patches cannot be combined with buckets: patches set",
    "loader(patches=PATCHES, sizes={0: 32})": "cannot be combined with sizes and batch_size by epoch",
    "loader(patches=PATCHES, batch_size=ByUpdate({0: 8}))": "cannot be combined with batch_size by epoch",
    "loader(patches=PATCHES, transform=np.negative)": "cannot be combined with transform",
    "loader(patches=PatchBudget(tokens=600))": "batch_size follows from tokens=600: pass only one",
    "loader(patches=PATCHES, pipeline=VIEWS)": "patches need a single view, got 2",
    "loader(patches=PATCHES, pipeline=ImagePipeline(crop='letterbox'))": "crop='random_resized', |, got 'letterbox'",
    "loader(patches=PATCHES, pipeline=ImagePipeline(crop='center', shorter_side=64))": "without shorter_side",
    "loader(patches=PATCHES, pipeline=timm_a2())": "patches support crops and flips only",
    "loader(patches=PATCHES, pipeline=imagenet_train(rotate90=0.5))": "do not use augmentations and rotate90",
    "loader(patches=PATCHES, batch_size=13)": "12 samples cannot fill a global batch of 13",
    "loader(patches=PATCHES, rank=0, world_size=2, pad=False, drop_last=False)": "on several ranks need padding",
    "PatchBudget(size=0)": "size of PatchBudget must be from 1 to 256, got 0",
    "PatchBudget(sequence_lengths=())": "sequence_lengths of PatchBudget must be 1 to 64 numbers, got ()",
    "PatchBudget(sequence_lengths=(16, 'a'))": "sequence_lengths of PatchBudget must be an integer, got 'a'",
    "PatchBudget(sequence_lengths=0)": "sequence_lengths of PatchBudget must be from 1 to 65536, got 0",
    "PatchBudget(tokens=500)": "tokens of PatchBudget must be at least the longest sequence, 576, got 500",
    "PatchBudget(max_ratio=0)": "max_ratio of PatchBudget must be above 0, got 0",
}

ORDERS = {
    "loader(rank=0, world_size=7)": "12 samples cannot fill a global batch",
    "loader(rank=1, world_size=1)": "rank must be in",
    "loader(rank=-1, world_size=1)": "rank must be in",
    "loader(rank=0, world_size=0)": "rank must be in",
    "loader(seed=2**64)": "seed must be in",
    "Schedule(n=0, batch_size=2)": "empty",
    "Permutation.of_epoch(0, 0, 0)": "n must be in",
    "Permutation.of_epoch(-1, 0, 0)": "n must be in",
    "Permutation.of_epoch(2**62 + 1, 0, 0)": "n must be in",
    "loader(weights=[1.0] * 3)": "weights must have shape [12]",
    "loader(weights=[-1.0] * 12)": "at least 0",
    "loader(weights=[0.0] * 12)": "not all 0",
    "loader(weights=[float('nan')] * 12)": "finite",
    "loader(weights=[1e308] * 12)": "their sum must be finite",
    "loader(weights={'cat': 1})": "'class0', 'class1', 'class2'",
    "loader(weights={'class0': -1})": "at least 0",
    "loader(weights={})": "above 0",
    "loader(weights='equal')": "'balanced'",
    "loader(weights=[object()] * 12)": "'balanced'",
    "loader(weights={'class0': 1.0, 0: 2.0})": "name the same class twice, as 'class0' and as 0",
    "loader(weights={('class0',): 1.0})": "must name classes of the data",
    "loader(weights={0.0: 1.0})": "must name classes of the data",
    "loader(weights={True: 1.0})": "must name classes of the data",
    "loader(weights={'class0': 'much'})": "weight of class 'class0' must be a number, got 'much'",
    "loader(weights='balanced', shuffle=False)": "draw samples at random: pass shuffle=True",
    "loader(weights='balanced', shuffle=Blocks())": "cannot be combined with other orders",
    "Blocks(group=0)": "group of Blocks must be at least 1",
    "Repeated(1)": "times of Repeated must be at least 2",
    "loader(shuffle=Repeated(3), weights='balanced')": "cannot be combined with other orders",
    "loader(shuffle=Repeated(3), epoch_samples=37)": "at most 36 with Repeated(3), 3 views of 12 samples, got 37",
    "loader(shuffle=Repeated(3), buckets=BUCKETS)": "buckets serve each sample once",
    "create_loader(mix({'a': ('photos', 1.0)}), shuffle=PerClass(2))": "cannot be shuffled by PerClass(...)",
    "PerClass(0)": "samples of PerClass must be at least 1",
    "PerClass(2, small='skip')": "small of PerClass must be one of repeat, leave_out, got 'skip'",
    "loader(shuffle=PerClass(5), batch_size=12)": "a multiple of the 5 samples of PerClass(5), got 12",
    "loader(shuffle=PerClass(2), batch_size=12)": "needs 6 classes, but the data has 3: lower batch_size",
    "loader(shuffle=PerClass(5, 'leave_out'), batch_size=5)": "needs 1 class, but the data has 0 with at least 5",
    "loader(shuffle=PerClass(2), batch_size={0: 4, 1: 2})": "needs one batch_size for all batches",
    "loader(shuffle=PerClass(2), patches=PatchBudget(sequence_lengths=(16, 32)))": "needs one batch_size",
    "create_loader(with_labels('photos', [0.5] * 12), shuffle=PerClass(2))": "needs labels that are class numbers",
    "create_loader(with_fields('flat', text=['a']), weights='balanced')": "needs labels, but the data has texts and",
    "create_loader(with_fields('flat', text=['a']), weights={'cat': 1})": "weights by class needs",
    "create_loader('flat', shuffle=PerClass(2))": "PerClass(...) needs labels, but the data has no labels: pas",
    "loader(buckets=BUCKETS, epoch_samples=8)": "buckets serve each sample once",
}

PIPELINES = {
    "loader(pipeline=[imagenet_train(8), imagenet_train(8, exif='apply')])": "all views, got ['ignore', 'apply']",
    "loader(pipeline=[imagenet_train(8), imagenet_train(8, mixup=0.2)])": "mixup and cutmix need a single view",
    "loader(pipeline=[presets.simclr(8)] * 2)": "pipeline[0] is already a sequence of 2 views: simclr()",
    "loader(pipeline=[imagenet_train(8), presets.dino(8)])": "[1] is already a sequence of|alone|join sequences by +",
    "loader(pipeline=[])": "must have 1 to 256 views, got 0",
    "loader(pipeline=[imagenet_train(8), imagenet_train])": "one for each view, got |: call it, pipeline=imagenet_t",
    "loader(pipeline=DEEP, backend='hdf5', cache='deep.h5', encoding=RAW)": "depth=16 needs all channels",
    "loader(pipeline=DEEP, backend='dali', cache='deep.h5', encoding=RAW)": "use Encoding() or Encoding(kind='array')",
    "create_loader((np.zeros((2, 8, 8, 4), np.uint8), [0, 1]))": "pass ImagePipeline(channels=4|s[..., :3]",
    "create_loader((np.zeros((2, 8, 8, 3), np.float32), [0, 1]))": "got float32: pass ImagePipeline(depth=32|* 255",
    "loader(pipeline=ImagePipeline(channels=2))": "mean must have 2 numbers with channels=2",
    "loader(transform=3)": "transform must be a function of an image, got 3",
    "loader(transform=[mean, mean])": "transform must be one function, or one per view (1), got 2",
    "loader(transform=mean, pipeline=imagenet_train(8, erasing=0.5))": "need uint8 [h, w, 3], but |s float32 [3]",
    "loader(batch_transform=3)": "batch_transform must be a function of",
    "serve(batch_transform=lambda images, labels: (images[1:], labels))": "must keep the 4 rows of a batch, got 3",
    "loader(on_repaired='drop')": "on_repaired must be one of count, raise, replace, ignore, got 'drop'",
    "loader(patch=16)": "has no option patch: pass patches=",
    "create_loader((path for path in paths))": "this generator is not a source: pass list(...) of it",
    "create_loader(map(str, paths))": "this map is not a source: pass list(...) of it",
}

CACHES = {
    "cached(wrkers=3)": "no option wrkers",
    "cached(batch_size=13)": "batch",
    "cached(decoder='fast')": "decoder must be one of",
    "cached(encoding='raw')": "encoding must be an Encoding",
    "cached(on_bad_sample='ignore')": "on_bad_sample",
    "cached(cache='raw.h5', encoding=Encoding())": "E-STALE|shorter side 40, but jpeg, lossless was requested",
    "create_loader('raw.h5', backend='hdf5', cache='never.h5')": "already a cache",
    "loader(cache='raw.h5')": "backend 'torch' has no option",
    "loader(backend='hdf5', cache=True)": "cache must be a path",
}

STATES = {
    "resume(state() | {'fingerprint': '0' * 32})": "another order of them|fix=load|in other shards",
    "resume(state() | {'samples': 13})": "E-STATE",
    "resume(state() | {'seed': 8})": "E-STATE",
    "resume(state() | {'shuffle': False})": "E-STATE",
    "resume(state() | {'sampler': 'other-1'})": "E-STATE",
    "resume(state() | {'version': 99})": "E-STATE",
    "resume(state() | {'epoch': -1})": "E-STATE",
    "resume(state() | {'epoch': '0'})": "E-STATE",
    "resume(state() | {'position': 13})": "E-STATE",
    "resume(state() | {'position': 1.5})": "E-STATE",
    "resume(state() | {'position': True})": "E-STATE",
    "resume(state() | {'unknown': 1})": "E-STATE",
    "resume({name: value for name, value in state().items() if name != 'seed'})": "E-STATE",
    "resume(state() | {'pipeline': None})": "E-STATE",
    "resume(state() | {'pipeline': 'x'})": "E-STATE",
    "resume(state() | {'pipeline': []})": "E-STATE",
    "resume(state() | {'pipeline': {}})": "E-STATE",
    "resume(state(), pipeline=VIEWS)": "the state has 1 view, this loader has 2: fix=",
    "resume(state(pipeline=VIEWS), pipeline=VIEWS[::-1])": "has size=[32, 32] in view 0, this loader has [24,",
    "resume(state(), pipeline=imagenet_train(16, mixup=0.2))": "the state has mixup=0.0, this loader has 0.2: fix=make",
    "resume(state(), pipeline=imagenet_train(16, interpolation='box'))": "interpolation='bilinear', this loader h",
    "resume(state(), transform=np.negative)": "the state has transform=None, this loader has",
    "resume(state(sizes={0: 24, 1: (40, 32)}), sizes={0: 24, 1: 32})": "has size=[[0, [24, 24]], [1, [40, 32]]",
    "resume(state(buckets=BUCKETS, batch_size=1), buckets=BUCKETS, batch_size=2, drop_last=False)": "saved 1, now 2",
    "resume(state(buckets=BUCKETS, batch_size=1), buckets=BUCKETS[:2], batch_size=1)": "other buckets|digest",
    "resume(state(patches=PATCHES), patches=PatchBudget(size=16), batch_size=1)": "the state has size={'patch': 8",
    "resume(state(patches=PATCHES), patches=None)": "size={'patch': 8, 'lengths': [16], 'max_ratio': None}, ",
    "resume(state(shuffle=BLOCKS), weights='balanced')": "saved with shuffle=Blocks(samples=4, group=8), this lo",
    "resume(state(shuffle=BLOCKS) | {'sampler': 'blocks-1 of 4 in groups of 8'}, shuffle=BLOCKS)": "order 'blocks-1",
    "resume(state(weights='balanced'), shuffle=BLOCKS)": "weights= and 12 samples per epoch, this loader has",
    "resume(state(shuffle=PerClass(2)), shuffle=PerClass(2), batch_size=6)": "batch_size=4|batch_size=6",
    "resume(state(shuffle=PerClass(2)), shuffle=PerClass(4))": "with shuffle=PerClass(2) and batch_size=4 a",
    "resume(state(shuffle=Repeated(2)))": "saved with shuffle=Repeated(2) and 12 samples per epoch",
    "resume(state(weights='balanced'), weights=range(12))": "other weights (both have weights= and",
    "resume(state(epoch_samples=8), epoch_samples=4)": "shuffle=True and epoch_samples=8|fix=make",
    "resume(state(), shuffle=Blocks(samples=2, group=2))": "has shuffle=Blocks(samples=2, group=2)",
    "resume(state(order=range(12)), shuffle=True)": "saved with order=, this loader has shuffle=True",
    "resume(state(mix({'a': ('photos', 1)})), mix({'a': ('photos', 1)}), epoch_samples=4)": "other shares",
    "resume(state(seed=8))": "seed=8, this loader has 0: fix=make the loader with seed=8, or start ag",
}
REFUSALS = [each for table in (SIZES, ORDERS, PIPELINES, CACHES, STATES) for each in table.items()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_mistakes(tmp_path_factory.mktemp("refusals"))
    build_cache(open_source(made / "photos"), made / "raw.h5", Encoding(kind="raw", resize=40), workers=0)
    return made


@pytest.mark.parametrize(("call", "words"), REFUSALS, ids=[call for call, _ in REFUSALS])
def test_a_wrong_setting_or_state_is_refused_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, words: str
) -> None:
    monkeypatch.chdir(root)
    check_message(call, words)
    assert not (root / "never.h5").exists()
