"""The loader: every block once an epoch, one global batch however it is divided, mixtures by weight."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from unmask.core.errors import UserError
from unmask.data.loader import Loader
from unmask.data.shards import ShardSet
from unmask.data.tokenizer import Tokenizer

Shards = Callable[..., ShardSet]


def blocks(first: int, count: int, length: int, extra: int = 0) -> np.ndarray:
    """A stream whose block number i is all `first + i`, and a rest too short for a block."""
    return np.concatenate([np.repeat(np.arange(first, first + count), length), np.full(extra, 299)])


def read(loader: Loader, steps: range, total: int) -> list[int]:
    """The block numbers of some steps, after a check that each row is one whole block."""
    found = []
    for step in steps:
        batch = loader.batch(step, 0, total, total)
        assert batch.tokens_BL.shape == (total, loader.length)
        assert batch.tokens_BL.dtype == torch.int64
        assert (batch.tokens_BL == batch.tokens_BL[:, :1]).all()
        found += batch.tokens_BL[:, 0].tolist()
    return found


def test_every_block_once_an_epoch_in_a_new_order(shard_set: Shards) -> None:
    stream = blocks(0, 60, 8, extra=5)
    loader = Loader([shard_set("a", [stream[:100], stream[100:]])], 8)
    assert loader.blocks == 60
    order = read(loader, range(30), 10)  # five epochs
    epochs = [order[i : i + 60] for i in range(0, 300, 60)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert epochs[0] != list(range(60))
    assert order != read(Loader(loader.sources, 8, seed=1), range(30), 10)


def test_any_division_gives_the_same_global_batch(shard_set: Shards) -> None:
    sources = [shard_set("a", [blocks(0, 13, 4)]), shard_set("b", [blocks(100, 7, 4)])]
    for weights in (None, [1.0, 3.0]):
        loader = Loader(sources, 4, weights=weights, seed=3)
        for step in (0, 1, 2, 57):
            whole = loader.batch(step, 0, 12, 12)
            for size in (1, 2, 3, 4, 6):
                parts = [loader.batch(step, start, size, 12) for start in range(0, 12, size)]
                assert [part.start for part in parts] == list(range(0, 12, size))
                assert all(part.total == 12 for part in parts)
                assert torch.equal(torch.cat([part.tokens_BL for part in parts]), whole.tokens_BL)
        later = Loader([ShardSet.open(source.folder) for source in sources], 4, weights=weights, seed=3)
        assert torch.equal(later.batch(57, 0, 12, 12).tokens_BL, whole.tokens_BL), "resumes at the exact batch"


def test_without_weights_corpora_are_one_pool(shard_set: Shards) -> None:
    loader = Loader([shard_set("a", [blocks(0, 13, 4)]), shard_set("b", [blocks(100, 7, 4, extra=3)])], 4)
    assert loader.blocks == 20
    assert sorted(read(loader, range(5), 4)) == [*range(13), *range(100, 107)]


def test_weights_set_the_shares_and_each_corpus_keeps_its_own_epochs(shard_set: Shards) -> None:
    loader = Loader([shard_set("a", [blocks(0, 30, 4)]), shard_set("b", [blocks(100, 5, 4)])], 4, weights=[3.0, 1.0])
    order = read(loader, range(50), 8)
    small = [block for block in order if block >= 100]
    assert len(small) == 100  # a quarter of 400
    assert set(Counter(small).values()) == {20}
    assert all(sorted(small[i : i + 5]) == list(range(100, 105)) for i in range(0, 100, 5))
    large = [block for block in order if block < 100]
    assert all(sorted(large[i : i + 30]) == list(range(30)) for i in range(0, 300, 30))


def test_wrapped_rows_are_mdlm_s(shard_set: Shards, small: Tokenizer) -> None:
    loader = Loader([shard_set("a", [blocks(10, 20, 6)])], 8, wrap=True)
    assert loader.blocks == 20
    rows = loader.batch(0, 0, 20, 20).tokens_BL
    assert (rows[:, 0] == small.bos_id).all()
    assert (rows[:, -1] == small.eos_id).all()
    assert (rows[:, 1:-1] == rows[:, 1:2]).all()
    assert sorted(rows[:, 1].tolist()) == list(range(10, 30))


def test_the_evaluation_pass_is_fixed_in_order_and_evenly_spread(shard_set: Shards) -> None:
    loader = Loader([shard_set("a", [blocks(0, 30, 4)], split="validation")], 4, split="validation", seed=9)
    everything = list(loader.eval_batches(None, 8))
    assert torch.cat([batch.tokens_BL for batch in everything])[:, 0].tolist() == list(range(30))
    assert [(batch.start, batch.total, len(batch.tokens_BL)) for batch in everything][-1] == (24, 30, 6)
    some = torch.cat([batch.tokens_BL for batch in loader.eval_batches(10, 4)])[:, 0].tolist()
    assert some == list(range(0, 30, 3))
    assert len(list(loader.eval_batches(1000, 8))) == len(everything)


def test_a_damaged_shard_is_refused_before_the_first_batch(shard_set: Shards) -> None:
    folder = shard_set("a", [blocks(0, 9, 4), blocks(9, 9, 4)]).folder
    (folder / "train-1.bin").write_bytes(bytes(72))  # of the right size, and every token in the vocabulary
    with pytest.raises(UserError, match=r"train-1.bin is damaged \(its sha256"):
        Loader([ShardSet.open(folder)], 4)


def test_mistakes_are_refused(shard_set: Shards) -> None:
    first = shard_set("a", [blocks(0, 9, 4)])
    other = shard_set("gpt2", [blocks(0, 9, 4)], tokenizer=Tokenizer.load("gpt2"))
    cases = [
        (lambda: Loader([first, other], 4), "gpt2 was prepared with 'gpt2'"),
        (lambda: Loader([first], 37), "36 tokens, less than one block of 37"),
        (lambda: Loader([first], 4, split="validation"), "unknown split 'validation'"),
        (lambda: Loader([first], 2, wrap=True), "too short"),
        (lambda: Loader([], 4), "no corpus"),
        (lambda: Loader([first], 4, weights=[1.0, 1.0]), "2 weights for 1 corpora"),
        (lambda: Loader([first], 4, weights=[0.0]), "positive"),
        (lambda: Loader([first], 4, weights=[float("nan")]), "positive"),
    ]
    for make, message in cases:
        with pytest.raises(UserError, match=message):
            make()
