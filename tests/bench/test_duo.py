"""The two steps that `unmask bench duo` races compute the same thing, and its table says what was run."""

import json

import pytest
import torch

from unmask.bench.duo import Bench
from unmask.bench.timing import random_model
from unmask.cli.main import run
from unmask.core.streams import stream
from unmask.data.loader import Batch
from unmask.objectives.duo import Duo, SoftStart, latent_at
from unmask.processes.gaussian import GaussianDuality


def test_plain_and_ours_have_the_same_loss_and_gradient(monkeypatch):
    """Also in the curriculum: the plain step is then given what ours reads."""
    bench = Bench(random_model("tiny", time=True), torch.device("cpu"), 16, compile=False)
    bench.student.eval()  # no dropout, which draws differently in the two
    batch = Batch(torch.randint(1024, (3, 16), generator=stream(0)), 1, 5)
    read, seen = Duo._read, []
    monkeypatch.setattr(Duo, "_read", lambda *given: seen.append((given, read(*given))) or seen[-1][1])
    plain, ours, _, soft, _ = bench.losses.values()

    def plain_of_ours(batch):
        (_, _, _, noise_B, _), (read_BLD, z_BL) = seen[-1]
        at, span = GaussianDuality(1025).uniform(noise_B), latent_at(torch.zeros(1), SoftStart().soft_window, 1025)[2]
        return bench.nelbo(read_BLD, z_BL, batch.tokens_BL, at.alpha, span * at.slope)

    for one, other in ((plain, ours), (None, soft)):
        found = []
        for way in (other, one or plain_of_ours):
            loss = way(batch)
            gradients = torch.autograd.grad(
                loss, list(bench.student.parameters()), allow_unused=True, retain_graph=True
            )
            found.append((loss, torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=0)
        assert float(torch.cosine_similarity(found[0][1], found[1][1], 0)) > 1 - 1e-6
        assert float(found[0][1].norm()) > 1


def test_the_bench_runs_in_miniature(capsys):
    options = "--preset tiny --length 16 --batch 2 --accumulate 2 --repeats 1 --device cpu --json"
    run(["bench", "duo", *options.split()])
    said = json.loads(capsys.readouterr().out)
    names = ["plain", "ours", "plain, curriculum", "ours, curriculum", "ours, curriculum, all of the latent"]
    assert [line["name"] for line in said["lines"]] == names
    rate = {line["name"]: line["tokens_per_second"] for line in said["lines"]}
    assert said["ratios"]["curriculum"]["speed"] == pytest.approx(rate["ours, curriculum"] / rate["plain, curriculum"])
    assert (said["batch"], said["accumulate"], said["length"]) == (2, 2, 16)
