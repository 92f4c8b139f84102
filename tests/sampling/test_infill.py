"""Patterns, prompts and suffixes become token templates: what is given stands where it was written."""

import pytest
import torch

from unmask.core.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.processes import States
from unmask.sampling.infill import from_pattern, templates


@pytest.fixture(scope="module")
def tokenizer():
    story = "once upon a time there lived a wolf. upon a hill there was a snake_case house. "
    return Tokenizer.train([story * 3], 320)


def parts(template):
    """A template as a list: a list of ids for each given stretch, a number for each blank."""
    found = []
    for token in template.tolist():
        kind = int if token < 0 else list
        if not found or not isinstance(found[-1], kind):
            found.append(kind())
        found[-1] += 1 if kind is int else [token]
    return found


def test_a_pattern_is_its_words_and_one_mask_an_underscore(tokenizer):
    pattern = "once upon a ____ there lived______, a wolf ___."
    head, first, middle, second, more, third, end = parts(from_pattern(pattern, tokenizer))
    assert (first, second, third) == (4, 6, 3)
    # the space before a blank belongs to the token that fills it, the space after it to the word that follows
    given = [tokenizer.decode(ids) for ids in (head, middle, more, end)]
    assert given == ["once upon a", " there lived", ", a wolf", "."]
    assert head == tokenizer.encode("once upon a")  # the very tokens a prompt would be


def test_blanks_may_stand_alone_at_the_start_and_at_the_end(tokenizer):
    assert parts(from_pattern("_____", tokenizer)) == [5]
    start, given, end = parts(from_pattern("___ lived ____", tokenizer))
    assert (start, tokenizer.decode(given), end) == (3, " lived", 4)


def test_one_or_two_underscores_are_text(tokenizer):
    given, blank = parts(from_pattern("a snake_case __init__ ___", tokenizer))
    assert (tokenizer.decode(given), blank) == ("a snake_case __init__", 3)


def test_prompts_suffixes_and_lengths_one_for_all_or_one_each(tokenizer):
    mask_id = tokenizer.size
    made = templates(
        3, longest=40, states=States(mask_id + 1, mask_id), tokenizer=tokenizer,
        prompt=["once", "", "upon a time"], suffix=" wolf.", length=[20, 40, 30],
    )  # fmt: skip
    tail = tokenizer.encode(" wolf.")
    for template, prompt, length in zip(made, ("once", "", "upon a time"), (20, 40, 30), strict=True):
        head = tokenizer.encode(prompt)
        blanks = length - len(head) - len(tail)
        assert template.tolist() == head + [-1] * blanks + tail
    free = templates(2, longest=40, states=States(mask_id + 1, mask_id), tokenizer=tokenizer)
    assert [template.tolist() for template in free] == [[-1] * 40] * 2


def test_token_ids_serve_models_without_text():
    one_L = torch.tensor([9, 3, 9])
    made = templates(2, longest=3, states=States(9 + 1, 9), tokenizer=None, infill=one_L)
    assert [template.tolist() for template in made] == [[-1, 3, -1], [-1, 3, -1]]
    each_BL = torch.tensor([[9, 3, 9], [1, 9, 9]])
    made = templates(2, longest=3, states=States(9 + 1, 9), tokenizer=None, infill=each_BL)
    assert torch.equal(torch.stack(made), each_BL.masked_fill(each_BL == 9, -1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"infill": "no blank at all"}, "has no blank: mark one with underscores"),
        ({"infill": "two __ are text"}, "has no blank"),
        ({"infill": "a " + "_" * 50}, "the model at most 40"),
        ({"infill": "a ____", "prompt": "once"}, "leave out prompt"),
        ({"infill": ["a ____"] * 3}, "3 entries for 2 samples"),
        ({"infill": torch.tensor([1, 2])}, "no blank to fill"),
        ({"infill": torch.tensor([1, 10**6])}, r"the id 1000000: give ids below \d+, \d+ where it is blank"),
        ({"infill": torch.tensor([[1, 0], [2, -2]])}, "the id -2: give ids below"),
        ({"infill": torch.tensor(1)}, r"infill is \(L,\) or \(n, L\) token ids"),
        ({"infill": torch.zeros(2, 3, 4, dtype=torch.int64)}, r"not \(2, 3, 4\)"),
        ({"infill": torch.tensor([0.5, 1.0])}, "of torch.float32"),
        ({"prompt": "there lived a wolf " * 20}, "leaves no blank in 40: shorten it"),
        ({"prompt": "a", "suffix": "b", "length": 2}, "leaves no blank in 2"),
        ({"prompt": ["a", "b", "c"]}, "3 entries for 2 samples"),
        ({"length": 41}, "between 1 and the model's 40"),
        ({"length": 0}, "between 1 and the model's 40"),
        ({"prompt": "once", "tokenizer": None}, "no tokenizer"),
        ({"n": 0}, "n must be at least 1"),
    ],
)
def test_what_cannot_be_filled_is_said_in_one_line(settings, words, tokenizer):
    ours = {"n": 2, "longest": 40, "states": States(tokenizer.size + 1, tokenizer.size), "tokenizer": tokenizer}
    settings = ours | settings
    with pytest.raises(UserError, match=words) as error:
        templates(settings.pop("n"), **settings)
    assert "\n" not in str(error.value)
