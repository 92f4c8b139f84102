"""The trainer as a caller sees it: what it computes, what it leaves on disk, what it refuses."""

import copy
import errno
import json
import re
import shutil
import statistics
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.training.runs import metrics, weights

from unmask.checkpoint.io import load, save
from unmask.core.errors import UserError, from_os_error
from unmask.core.streams import stream
from unmask.data.loader import Loader
from unmask.data.shards import ShardSet
from unmask.metrics.elbo import elbo_of, order_agnostic_masks
from unmask.models.dit.network import DiT
from unmask.objectives.ar import AR
from unmask.objectives.base import LossOutput
from unmask.objectives.elbo import MDLM
from unmask.training import loop, speed
from unmask.training import state as sharded
from unmask.training.metrics import BEHIND
from unmask.training.student import Student


class Uneven:
    """A loss whose weights differ from row to row: normalising a micro-batch by itself would be wrong."""

    forwards, regions = 3, ("distil", "reconstruct")

    def __call__(self, student, batch, *, step, generator):
        weight = torch.rand(batch.total, 1, generator=generator)[batch.start : batch.start + len(batch.tokens_BL)] ** 3
        loss = student.logits(student.features(batch.tokens_BL)).logsumexp(-1)
        region = (1 + batch.tokens_BL % 2).to(torch.int8)
        return LossOutput(loss, weight.expand_as(loss), region)


def test_one_step_is_adamw_on_the_weighted_mean_of_the_whole_batch(model, trainer, corpus):
    """Micro-batches of 3, 3 and 2 rows with uneven weights, against one backward pass written out."""
    for part in (model.head.linear.weight, model.blocks[0].modulation.weight):
        torch.nn.init.normal_(part, generator=stream(0))
    twin = DiT.from_config(model.config)
    twin.load_state_dict(model.state_dict())
    for block in (*model.blocks, *twin.blocks):
        block.dropout = 0.0
    data = Loader([ShardSet.open(corpus)], model.length)
    trainer(steps=1, micro_batch=3, warmup=0, clip=0.5, eval_every=0, save_every=0).fit(model, Uneven(), data)

    output = Uneven()(twin, data.batch(0, 0, 8, 8), step=0, generator=stream(0, "noise", 0))
    loss = (output.loss_BL * output.weight_BL).sum() / output.weight_BL.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
    torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.0).step()
    # AdamW's first step is the sign of the gradient: compare where the sign is beyond doubt
    sure = torch.cat([parameter.grad.flatten().abs() for parameter in twin.parameters()]) > 1e-6
    assert int(sure.sum()) > 1000
    assert torch.allclose(weights(model)[sure], weights(twin)[sure], atol=2e-5)


def test_losses_of_regions_are_their_own_means(model, trainer, corpus, tmp_path):
    data = Loader([ShardSet.open(corpus)], model.length)
    trainer(steps=1, warmup=0, eval_every=0).fit(model, Uneven(), data)
    output = Uneven()(DiT.from_config(model.config), data.batch(0, 0, 8, 8), step=0, generator=stream(0, "noise", 0))
    for code, name in ((1, "distil"), (2, "reconstruct")):
        here = output.region_BL == code
        mean = (output.loss_BL * output.weight_BL)[here].sum() / output.weight_BL[here].sum()  # fresh heads: all log 7
        assert metrics(tmp_path / "run", f"loss_{name}")[1] == pytest.approx(mean.item(), rel=1e-6)


def test_a_run_learns_and_leaves_a_checkpoint_of_the_averaged_weights(model, trainer, corpus, tmp_path):
    run = tmp_path / "run"
    checkpoint = trainer(steps=60, eval_every=20, ema=0.9, tensorboard=True).fit(model, MDLM(), corpus)
    elbo = metrics(run, "elbo")
    assert list(elbo) == [0, 20, 40, 60]
    assert elbo[60] < elbo[0] - 3 * metrics(run, "elbo_stderr")[60]
    assert list((run / "tensorboard").glob("events.*"))

    averaged, raw = load(run), load(run, weights="raw")
    assert torch.equal(weights(averaged.model), weights(checkpoint.model))
    assert torch.equal(weights(raw.model), weights(model))
    assert not torch.equal(weights(raw.model), weights(averaged.model))

    # the reported ELBO is that of the averaged weights on held-out blocks spaced evenly over the text
    held_out = Loader([ShardSet.open(corpus)], model.length, split="validation")
    x0 = torch.cat([batch.tokens_BL for batch in held_out.eval_batches(8, 8)])
    with torch.no_grad():
        values = elbo_of(averaged.model, x0, order_agnostic_masks(8, model.length, stream(0, "evaluate"))[0]).tolist()
    assert elbo[60] == pytest.approx(statistics.mean(values), rel=1e-5)
    assert metrics(run, "elbo_stderr")[60] == pytest.approx(statistics.stdev(values) / 8**0.5, rel=1e-4)


def test_attention_is_logged_at_every_evaluation_and_its_collapse_said_once(model, trainer, corpus, tmp_path, capsys):
    with torch.no_grad():
        model.blocks[1].qkv.weight[:16] *= 1e4  # queries: every head of the second block sees one position
    trainer(steps=4).fit(model, MDLM(), corpus)
    trainer(steps=8).fit(model, MDLM(), corpus)  # a resumed run remembers what it has said
    errors = capsys.readouterr().err
    assert errors.count("attention sees few tokens in block 1 (0.") == errors.count("few tokens") == 1
    for block, sharp in ((0, False), (1, True)):
        entropy, logit = (metrics(tmp_path / "run", f"attention_{name}_{block}") for name in ("entropy", "logit"))
        assert list(entropy) == list(logit) == [0, 4, 8]
        assert all((value < 1) == sharp for value in entropy.values())
        assert all((value > 100) == sharp for value in logit.values())


def test_runs_of_two_seeds_are_scored_on_the_same_views(model, trainer, corpus, tmp_path):
    begun = {name: value + 0.3 * torch.randn_like(value) for name, value in model.state_dict().items()}
    found = []
    for seed in (0, 1):
        model.load_state_dict(begun)  # not fresh: a fresh head is as sure of every view
        trainer(steps=4, seed=seed, out=tmp_path / str(seed)).fit(model, MDLM(), corpus)
        found.append(metrics(tmp_path / str(seed), "elbo"))
    assert found[0][0] == found[1][0]
    assert found[0][4] != found[1][4]


def test_without_a_folder_it_stays_in_memory_and_leaves_the_callers_randomness_alone(model, trainer, corpus, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    checkpoint = trainer(out=None, steps=2).fit(model, MDLM(), corpus)
    assert torch.equal(torch.rand(3), expected)
    assert checkpoint.provenance["step"] == 2
    assert not any(tmp_path.iterdir())


def test_a_finished_run_says_so_whatever_was_removed_to_save_space(model, trainer, corpus, tmp_path, capsys):
    first = trainer(steps=4).fit(model, MDLM(), corpus)

    def again(same_raw=True):
        other = DiT.from_config(model.config)
        found = trainer(steps=4).fit(other, MDLM(), corpus)
        assert "is finished" in capsys.readouterr().err
        assert torch.equal(weights(found.model), weights(first.model))
        assert torch.equal(weights(other), weights(model)) == same_raw  # trained in place, whichever session did it

    again()
    with pytest.raises(UserError, match="already done 4 steps"):
        trainer(steps=3).fit(model, MDLM(), corpus)
    shutil.rmtree(tmp_path / "run" / "state")
    again()
    with pytest.raises(UserError, match="the checkpoint of step 4 and no training state to go on from"):
        trainer(steps=6).fit(model, MDLM(), corpus)
    save(load(tmp_path / "run"), tmp_path / "run" / "checkpoint")  # without the raw weights
    again(same_raw=False)


def test_a_changed_config_is_refused_with_a_diff(model, trainer, corpus, tmp_path):
    trainer(steps=2).fit(model, MDLM(), corpus)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(UserError, match=r"objective\.plan iid -> golden; trainer\.lr 0\.01 -> 0\.5"):
        trainer(steps=2, lr=0.5).fit(model, MDLM(plan="golden"), corpus)
    with pytest.raises(UserError, match=r"trainer\.decay constant -> cosine\)"):
        trainer(steps=4, decay="cosine").fit(model, MDLM(), corpus)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    trainer(steps=2, log_every=7, keep=1).fit(model, MDLM(), corpus)  # how it is watched may change


def test_a_folder_with_other_things_in_it_is_left_alone(model, trainer, corpus, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    (tmp_path / "run" / ".notes.old-20250101").write_text("named as we name what is being written")
    with pytest.raises(UserError, match="which is not ours"):
        trainer().fit(model, MDLM(), corpus)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".notes.old-20250101", "thesis.txt"]


def test_two_at_work_on_one_folder(model, trainer, corpus, tmp_path):
    class Intruder(MDLM):
        """Comes in the middle of the run, with the same command."""

        def __call__(self, student, batch, *, step, generator):
            if step == 1:
                with pytest.raises(UserError, match="another process is at work on"):
                    trainer(steps=2).fit(DiT.from_config(model.config), MDLM(), corpus)
            return super().__call__(student, batch, step=step, generator=generator)

    trainer(steps=2).fit(model, Intruder(), corpus)
    assert len(metrics(tmp_path / "run", "loss")) == 2  # nothing of the first one's log is lost


class Poisoned(MDLM):
    """MDLM, but not a number in the sixth step alone. Remembers the steps it was asked for."""

    asked: ClassVar[list[int]] = []

    def __call__(self, student, batch, *, step, generator):
        self.asked.append(step)
        output = super().__call__(student, batch, step=step, generator=generator)
        return output if step != 5 else LossOutput(output.loss_BL * float("nan"), output.weight_BL, output.region_BL)


@pytest.mark.parametrize(
    ("due", "found_at"),
    [({"log_every": 1}, 6), ({"log_every": 7}, 7), ({"eval_every": 7}, 7), ({"steps": 7}, 7), ({}, 8)],
)  # the last: when the next state would be saved
def test_a_loss_that_is_not_a_number_spoils_no_weights_and_nothing_is_kept_after_it(
    model, trainer, corpus, tmp_path, due, found_at
):
    rare = {"log_every": 100, "eval_every": 100, "save_every": 4, "steps": 100}
    with pytest.raises(UserError, match=r"stopped at step 6.*last good checkpoint is .*checkpoint \(step 4\)"):
        trainer(**rare | due).fit(model, Poisoned(), corpus)
    assert Poisoned.asked[-1] + 1 == found_at
    assert bool(weights(model).isfinite().all())
    assert load(tmp_path / "run").provenance["step"] == 4
    assert max(path.name for path in (tmp_path / "run" / "state").iterdir()) == "step-00000004"
    assert max(metrics(tmp_path / "run", "loss"), default=0) < 6


def test_a_run_that_saved_nothing_stops_soon_and_may_begin_anew_with_another_config(model, trainer, corpus, tmp_path):
    """What the message advises, a lower rate, is possible in the same folder."""
    with pytest.raises(UserError, match=r"stopped at step 6.*nothing was saved yet: use a lower lr"):
        trainer(steps=100, log_every=100, eval_every=100, save_every=0).fit(model, Poisoned(), corpus)
    assert Poisoned.asked[-1] == 5 + BEHIND
    trainer(steps=3, lr=1e-3).fit(model, MDLM(), corpus)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["config"]["trainer"]["lr"], len(run["sessions"])) == (1e-3, 1)
    assert sorted(metrics(tmp_path / "run", "loss")) == [1, 2, 3]  # of this run alone
    with pytest.raises(UserError, match="another config"):  # from now on there is something to lose
        trainer(steps=3, lr=1e-2).fit(model, MDLM(), corpus)


def test_the_spread_of_a_single_sequence_is_null(model, trainer, write_corpus, tmp_path, capsys):
    tokens = np.random.default_rng(0).integers(0, 5, 300)
    corpus = write_corpus(tmp_path / "corpus", tokens, tokens[:13], 6)  # one block of validation
    trainer(steps=4, progress=True).fit(model, MDLM(), corpus)
    assert metrics(tmp_path / "run", "elbo_stderr") == {0: None, 4: None}
    for file in ("metrics.jsonl", "checkpoint/provenance.json"):
        assert not re.search("NaN|Infinity", (tmp_path / "run" / file).read_text())  # JSON has no such words
    shown = capsys.readouterr().err
    assert "ELBO" in shown
    assert "±" not in shown


def test_reported_seconds_are_those_of_training(model, trainer, corpus, tmp_path, monkeypatch):
    """A clock that only moves when something is done: 1 s an objective, 100 s an evaluation, 1000 s a saved state."""
    now = [0.0]

    def taking(seconds, work):
        def slow(*args, **kwargs):
            now[0] += seconds
            return work(*args, **kwargs)

        return slow

    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(loop, "matmul_rate", lambda *_: 1.0)
    monkeypatch.setattr(MDLM, "__call__", taking(1.0, MDLM.__call__))
    monkeypatch.setattr(loop, "likelihood", taking(100.0, loop.likelihood))
    monkeypatch.setattr(loop.RunFolder, "save", taking(1000.0, loop.RunFolder.save))
    trainer(steps=8, log_every=3).fit(model, MDLM(), corpus)
    assert metrics(tmp_path / "run", "seconds") == {3: 3.0, 6: 6.0, 8: 8.0}
    assert set(metrics(tmp_path / "run", "tokens_per_s").values()) == {8.0 * model.length}


@pytest.mark.cuda
@pytest.mark.parametrize("causal", [False, True])
def test_no_optimiser_step_waits_for_the_gpu(trainer, corpus, monkeypatch, causal):
    seen = []

    def queued(work):
        def step(run, number, *rest):
            seen.append(number)
            torch.cuda.set_sync_debug_mode("error" if number > 1 else "default")  # the first steps load kernels
            try:
                return work(run, number, *rest)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return step

    monkeypatch.setattr(loop.Run, "_gradients", queued(loop.Run._gradients))
    monkeypatch.setattr(Student, "update", queued(Student.update))
    model = DiT(7, 12, hidden=16, cond=8, blocks=2, heads=2, dropout=0.1, causal=causal)
    trainer(device="cuda").fit(model, AR() if causal else MDLM(), corpus)
    assert max(seen) == 7


def test_a_full_disk_leaves_the_previous_state_whole(model, trainer, corpus, tmp_path, monkeypatch):
    begun = {name: value.clone() for name, value in model.state_dict().items()}
    written, write = [], sharded.write_tensors

    def full_after_two(path, tensors):
        written.append(path)
        if len(written) < 3:
            return write(path, tensors)
        path.write_bytes(b"half")
        raise from_os_error(OSError(errno.ENOSPC, "", str(path)))

    monkeypatch.setattr(sharded, "write_tensors", full_after_two)
    with pytest.raises(UserError, match="the disk is full"):
        trainer().fit(model, MDLM(), corpus)
    monkeypatch.undo()
    names = sorted(path.name for path in (tmp_path / "run" / "state").iterdir())
    assert names == ["step-00000002", "step-00000004"]  # and nothing half-written beside them

    resumed = trainer().fit(model, MDLM(), corpus)
    model.load_state_dict(begun)
    straight = trainer(out=tmp_path / "straight").fit(model, MDLM(), corpus)
    assert torch.equal(weights(resumed.model), weights(straight.model))


def test_what_does_not_go_together_is_refused(model, trainer, corpus, tmp_path):
    with pytest.raises(UserError, match="13 tokens are longer than the model's 12"):
        trainer().fit(model, MDLM(), Loader([ShardSet.open(corpus)], 13))
    with pytest.raises(UserError, match="has 6 tokens, the model 10 states"):
        trainer().fit(DiT(10, 12, 16, 8, 1, 2), MDLM(), corpus)
    with pytest.raises(UserError, match="mask, state 2, is a token of the text"):
        trainer().fit(type("MaskInText", (DiT,), {"mask_id": 2})(7, 12, 16, 8, 1, 2), MDLM(), corpus)
    with pytest.raises(UserError, match="causal"):
        trainer().fit(model, AR(), corpus)
    with pytest.raises(UserError, match="did you mean 'cosine'"):
        trainer(decay="cosin")
    assert not (tmp_path / "run").exists()


@pytest.mark.permissions
def test_a_folder_without_permission(model, trainer, corpus, tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match=r"cannot write .*permission denied"):
            trainer().fit(model, MDLM(), corpus)
        assert not any(tmp_path.iterdir())
    finally:
        tmp_path.chmod(0o700)


def test_muon_resumes_to_the_bit(trainer, model, corpus, tmp_path):
    born = copy.deepcopy(model.state_dict())
    options = {"optimiser": "muon", "weight_decay": 0.1, "decay": "constant"}
    whole = trainer(out=tmp_path / "whole", **options).fit(model, MDLM(exact_counts=True), corpus)
    again = DiT.from_config(model.config)
    again.load_state_dict(born)
    trainer(out=tmp_path / "parts", steps=4, **options).fit(again, MDLM(exact_counts=True), corpus)
    parts = trainer(out=tmp_path / "parts", **options).fit(again, MDLM(exact_counts=True), corpus)
    assert torch.equal(weights(whole.model), weights(parts.model))
