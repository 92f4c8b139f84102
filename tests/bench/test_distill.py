"""The two steps that `unmask bench distill` races compute the same thing, and its table says what was run."""

import json

import pytest
import torch

from unmask.bench.distill import Bench
from unmask.bench.timing import random_model
from unmask.cli.main import run
from unmask.core.errors import UserError
from unmask.core.streams import stream
from unmask.data.loader import Batch


def test_plain_and_ours_have_the_same_loss_and_gradient():
    bench = Bench(random_model("tiny"), torch.device("cpu"), 16, delta=0.2, compile=False)
    bench.student.eval()  # no dropout, which draws differently in the two
    x0_BL = torch.randint(1024, (3, 16), generator=stream(0))
    found = {}
    for way in (bench.plain, bench.ours):
        loss = way(Batch(x0_BL, 1, 5))
        gradients = torch.autograd.grad(loss, list(bench.student.parameters()), allow_unused=True)
        found[way] = loss, torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
    assert torch.allclose(found[bench.plain][0], found[bench.ours][0], rtol=1e-5)
    assert torch.allclose(found[bench.plain][1], found[bench.ours][1], atol=1e-4)
    assert float(found[bench.plain][1].norm()) > 1


def test_the_bench_runs_in_miniature(capsys):
    options = "--preset tiny --length 16 --batch 2 --accumulate 2 --repeats 1 --device cpu --json"
    run(["bench", "distill", *options.split()])
    said = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in said["lines"]] == ["plain", "ours"]
    plain, ours = (line["tokens_per_second"] for line in said["lines"])
    assert said["ratios"]["speed"] == pytest.approx(ours / plain)
    assert (said["batch"], said["accumulate"], said["length"]) == (2, 2, 16)
    assert all(0 < line["flops_share"] < 1 for line in said["lines"])


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match="batch, length, accumulate and repeats must be at least 1"):
        run(["bench", "distill", "--batch", "0"])
