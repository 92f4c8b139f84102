"""The division into splits: the rule by documents, the rule by characters, and that no text is lost or moved."""

from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.data import corpus
from unmask.data.corpus import Reading, find
from unmask.data.splits import Division, divide, survey, training_sample

TEXTS = {"one.txt": 1, "few.txt": 7, "many.txt": 30}

Prose = Callable[[int, int], str]


def planned(prose: Prose, tmp_path: Path, name: str, validation: float = 0.05, test: float = 0.05):
    texts = [prose(seed, 40 + seed) for seed in range(TEXTS[name])]
    (tmp_path / name).write_text("\n<|endoftext|>\n".join(texts), encoding="utf-8")
    sources, reading = find(str(tmp_path / name)), Reading()
    plan = divide(survey(sources, reading, lambda size: None), validation, test)
    return texts, sources, Division.from_json(plan.to_json())


def test_the_last_documents_are_validation_and_those_before_them_test(prose: Prose, tmp_path: Path) -> None:
    texts, sources, plan = planned(prose, tmp_path, "many.txt", validation=0.1, test=0.05)
    assert plan.split_by == "documents"
    found: dict[str, list[str]] = {"train": [], "test": [], "validation": []}
    for item in plan.items(sources, Reading()):
        found[item.split].append(item.text)
    assert found == {"train": texts[:25], "test": texts[25:27], "validation": texts[27:]}


@pytest.mark.parametrize("piece", [50, 1 << 18])
@pytest.mark.parametrize(("validation", "test"), [(0.05, 0.05), (0.06, 0.0), (0.0, 0.06), (0.0, 0.0)])
@pytest.mark.parametrize("name", ["one.txt", "few.txt"])
def test_too_few_documents_are_divided_by_characters(prose, tmp_path, monkeypatch, name, validation, test, piece):
    monkeypatch.setattr(corpus, "PIECE", piece)
    texts, sources, plan = planned(prose, tmp_path, name, validation, test)
    items = list(plan.items(sources, Reading()))
    assert "".join(item.text for item in items) == "".join(texts)
    total = sum(map(len, texts))
    shares = {"train": 1 - validation - test, "test": test, "validation": validation}
    for split, share in shares.items():
        own = [item for item in items if item.split == split]
        assert abs(sum(len(item.text) for item in own) - share * total) <= 20  # moved to the nearest gap between words
        assert not own or own[-1].last, "a split ends with a whole document"
    order = list(dict.fromkeys(item.split for item in items))
    assert order == [split for split in ("train", "test", "validation") if shares[split] > 0]


def test_items_from_a_later_source_are_the_same_items(prose: Prose, tmp_path: Path) -> None:
    for number in range(4):
        texts = [prose(10 * number + i, 20) for i in range(9)]
        (tmp_path / f"{number}.txt").write_text("\n<|endoftext|>\n".join(texts), encoding="utf-8")
    sources = find(str(tmp_path))
    plan = divide(survey(sources, Reading(), lambda size: None), 0.3, 0.3)
    everything = list(plan.items(sources, Reading()))
    assert list(plan.items(sources, Reading(), first=2)) == [item for item in everything if item.source >= 2]


def test_a_tokenizer_is_trained_on_training_text_from_all_over_the_corpus(prose: Prose, tmp_path: Path) -> None:
    texts, sources, plan = planned(prose, tmp_path, "many.txt")
    size = sum(map(len, texts))
    chosen = list(training_sample(plan, sources, Reading(), size // 3, lambda size: None))
    places = [texts.index(text) for text in chosen]
    assert abs(sum(map(len, chosen)) - size / 3) < size / 12
    assert max(places) < 28, "held-out text is not for the tokenizer"
    assert max(b - a for a, b in zip([-1, *places], [*places, 28], strict=True)) <= 5
