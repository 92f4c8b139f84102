"""Texts: what they spell, how many bytes that is, and how real text is cut into blocks."""

import lzma

import numpy as np
import pytest
import torch

from unmask.checkpoint.io import Checkpoint
from unmask.core.errors import UserError
from unmask.data.prepare import prepare
from unmask.data.tokenizer import Tokenizer
from unmask.metrics.texts import Texts, clusters, held_out, of_samples
from unmask.sampling.verbs import sample
from unmask.theory.oracle import Enumerated, sticky

PROSE = "It was — as ever — a “fine” day.\n"


@pytest.fixture(scope="module")
def gpt2():
    return Tokenizer.load("gpt2")


def test_ends_of_documents_are_not_text(gpt2):
    ids = [*gpt2.encode("One."), gpt2.eos_id, *gpt2.encode("Dêux."), gpt2.eos_id]
    texts = Texts(torch.tensor([ids, gpt2.encode(" a" * len(ids))]), gpt2)
    assert texts.documents == [["One.", "Dêux.", ""], [" a" * len(ids)]]
    assert texts.bytes_T.tolist() == [4 + 6, 2 * len(ids)]
    assert texts.strings[0] == "One.\n\nDêux."
    with pytest.raises(UserError, match="masked position"):
        Texts(torch.tensor([[gpt2.size]]), gpt2)


def test_a_text_file_is_packed_into_blocks_of_the_model(gpt2, tmp_path):
    """By hand: every document and its end in one stream, cut, and evenly spaced blocks taken."""
    documents = [PROSE * (3 + i) for i in range(9)]
    path = tmp_path / "any.txt.xz"
    path.write_bytes(lzma.compress("<|endoftext|>\n".join(documents).encode()))
    stream = [id for document in documents for id in [*gpt2.encode(document.removesuffix("\n")), gpt2.eos_id]]
    blocks = np.array(stream[: len(stream) // 32 * 32]).reshape(-1, 32)
    assert held_out(path, gpt2, 32).tokens_TL.tolist() == blocks.tolist()
    few = held_out(path, gpt2, 32, count=4)
    assert few.tokens_TL.tolist() == blocks[[i * len(blocks) // 4 for i in range(4)]].tolist()
    wrapped = held_out(path, gpt2, 34, count=1, wrap=True).tokens_TL[0].tolist()
    assert wrapped == [gpt2.bos_id, *blocks[0].tolist(), gpt2.eos_id]
    numbers = np.repeat(np.arange(9), [len(gpt2.encode(d.removesuffix("\n"))) + 1 for d in documents])
    assert few.document_T.tolist() == [int(numbers[i * len(blocks) // 4 * 32 + 16]) for i in range(4)]
    with pytest.raises(UserError, match="less than one block"):
        held_out(path, gpt2, 10_000)


def test_a_prepared_corpus_gives_its_held_out_split(write_corpus, letters, tmp_path):
    folder = write_corpus(tmp_path / "corpus", np.zeros(50, int), np.arange(40) % 6, 7)
    tokenizer = Tokenizer.load(folder)
    texts = held_out(folder, tokenizer, 8, count=2)
    assert texts.tokens_TL.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1], [4, 5, 0, 1, 2, 3, 4, 5]]
    with pytest.raises(UserError, match="wrong tokenizer"):
        held_out(folder, letters(9), 8)


def test_the_sample_is_what_preparing_it_holds_out(tmp_path):
    """The other books are for training, and would make a model look better than it is."""
    prepare(["sample"], tmp_path / "corpus", tokenizer="pocket", progress=False)
    tokenizer = Tokenizer.load("pocket")
    for split in (None, "test"):
        mine, theirs = (held_out(data, tokenizer, 256, split=split) for data in ("sample", tmp_path / "corpus"))
        assert torch.equal(mine.tokens_TL, theirs.tokens_TL)
        assert torch.equal(mine.document_T, theirs.document_T)
        assert mine.record["split"] == (split or "validation")
        assert len(mine) >= 128, "what `unmask evaluate` asks for by itself"
    with pytest.raises(UserError, match=r"unknown split 'tset'.*'test'"):
        held_out("sample", tokenizer, 256, split="tset")


def test_samples_bring_their_log_q_and_record(letters):
    checkpoint = Checkpoint(Enumerated(sticky(length=4, tokens=3)), tokenizer=letters(3))
    samples = sample(checkpoint, 5, 2, seed=1)
    texts = of_samples(samples, checkpoint.tokenizer, model_hash="x")
    assert torch.equal(texts.log_q_T, samples.log_q.sum(1))
    assert (texts.record["steps"], texts.record["model_hash"], texts.prompted) == (2, "x", False)
    assert of_samples(sample(checkpoint, 2, 2, prompt="a b"), checkpoint.tokenizer).prompted
    with pytest.raises(UserError, match="no tokenizer"):
        of_samples(samples, None)


def test_texts_of_a_document_belong_together_unless_documents_are_few():
    books = torch.tensor([3, 3, 5, 8, 8, 9, 12])
    assert clusters(books).tolist() == [0, 0, 1, 2, 2, 3, 4]
    assert clusters(books[:-1]).tolist() == [0, 1, 2, 3, 4, 5], "four documents: one text, and it has few blocks"
    one_text = [0] * 3 + [1] * 2 + [2] * 3 + [3] * 2 + [4] * 3 + [5] * 2 + [6] * 3 + [7] * 2
    assert clusters(torch.zeros(20)).tolist() == one_text
    mostly_one = torch.tensor([0] * 11 + list(range(1, 10)))
    assert clusters(mostly_one).tolist() == one_text
