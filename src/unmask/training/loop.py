"""The only training loop: any objective, one process or many.

Everything random is drawn from a stream named by (seed, purpose, step), so a state is the trained weights, the
optimiser, the average and the step number; no generator is ever saved. One optimiser step is one global batch: the
gradient of sum(loss · weight) over all its rows, divided by sum(weight) over all ranks and micro-batches. An objective
may have rounds (rounds.py): the student of every round is kept, and may be the teacher of the next.

The host only queues work and looks at a step's loss a few steps later (metrics.py), so that a GPU never waits for it.
Before anything is reported, evaluated or kept, every step so far is looked at, which ends the run if one went wrong.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unmask.checkpoint.io import Checkpoint, save
from unmask.core.devices import to_device
from unmask.core.errors import UserError, reading
from unmask.core.progress import Progress, note, short
from unmask.core.provenance import record
from unmask.core.ranks import Ranks
from unmask.core.streams import seed_of, stream
from unmask.data.answers import Data
from unmask.data.loader import Batch
from unmask.inference.step_law import Factorised, StepLaw
from unmask.models.denoiser import is_causal
from unmask.models.family import family_of, plain
from unmask.objectives.base import IDENTITY, REGIONS, LossOutput, Objective
from unmask.processes import Masked, Process
from unmask.training.evaluate import HeldOutScore, half_masked, likelihood
from unmask.training.folder import RunFolder
from unmask.training.guard import Guard, Look
from unmask.training.metrics import BEHIND, Arrivals, MetricsLog, Window
from unmask.training.optim import learning_rate
from unmask.training.rounds import Rounds
from unmask.training.speed import Stopwatch, matmul_rate
from unmask.training.student import Student
from unmask.training.watch import AttentionWatch, LossWatch, Stop

if TYPE_CHECKING:
    from unmask.training.trainer import Trainer


class Run:
    """One session of a run: the state in memory, and the loop."""

    def __init__(
        self, trainer: Trainer, model: Any, objective: Objective, data: Data, held_out: Data | None, ranks: Ranks,
        folder: RunFolder | None, config: dict[str, Any], guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self.trainer, self.objective, self.data, self.held_out, self.ranks = trainer, objective, data, held_out, ranks
        self.folder, self.config, self.causal, self.guard = folder, config, is_causal(model), guard
        self.rounds = objective if isinstance(objective, Rounds) else None
        self.student = Student(model, trainer, ranks)
        if trainer.compile and (compile_loss := getattr(objective, "compile", None)):
            compile_loss()
        self.watch, self.attention = LossWatch(), AttentionWatch(data.length)
        self.window, self.arrivals = Window(), Arrivals()
        self.score: HeldOutScore | None = None
        self.clock, self.tokens = Stopwatch(), 0  # of training since the last line of metrics, in this session
        self.total_seconds = 0.0  # of training over all sessions
        self.share = trainer.batch // ranks.world
        self.micro_batch = min(trainer.micro_batch or self.share, self.share)
        dtype = torch.bfloat16 if trainer.precision == "bf16" else torch.float32
        self.rate = matmul_rate(ranks.device, dtype) * ranks.world
        self.save_due = False
        self.stop, self.stopping = Stop(), False  # whether this process is asked to leave; whether all are leaving

    # -- the loop ------------------------------------------------------------------------------------------------

    def go(self, start: int) -> Checkpoint:
        trainer, ranks = self.trainer, self.ranks
        with ExitStack() as stack:
            if start:
                self._restore(start)
            self.log = self._open_log(start, stack)
            self.progress = stack.enter_context(Progress(shown=trainer.progress and ranks.first))
            self.progress.show("training", start, trainer.steps)
            if self.folder:
                stack.enter_context(self.stop.listening(among_others=ranks.world > 1))
            if start == 0:
                self._evaluate(0)
            for step in range(start, trainer.steps):
                if self.rounds and (step == start or self.rounds.begins(step)):
                    self._enter_round(self.rounds, step)
                self.clock.start()
                sums = self._gradients(step)
                self.arrivals.send(step, torch.cat([self.student.update(step, sums, self._lr(step)), sums]))
                self.tokens += self.data.tokens(step, step + 1, trainer.batch)
                self._after(step + 1)
            if self.rounds and start == trainer.steps:  # only the checkpoint is missing: it says which round it is of
                self._enter_round(self.rounds, start - 1)
            checkpoint = self._export(trainer.steps)
            if self.stopping:
                self._leave(trainer.steps)
        if isinstance(checkpoint.model, nn.Module):
            checkpoint.model.to(ranks.device)
        return checkpoint

    def _after(self, done: int) -> None:
        """Look at what has been done; report, evaluate and save where that is due; leave if asked to."""
        trainer = self.trainer
        self.progress.show("training", done, trainer.steps)
        round_ends = self.rounds is not None and self.rounds.begins(done)
        ends = round_ends or done == trainer.steps
        report_due = ends or done % trainer.log_every == 0
        eval_due = self.held_out is not None and (ends or done % trainer.eval_every == 0)
        self.save_due |= bool(trainer.save_every) and done % trainer.save_every == 0
        settled = report_due or eval_due or self.save_due
        self._look_back(0 if settled else BEHIND)  # at all of it if something is to be reported or kept
        if settled:
            self.clock.stop()
        if report_due:
            self._report(done)
        if eval_due:
            self._evaluate(done)
        if round_ends and self.rounds and self.folder:
            self._checkpoint(done, self.folder.round(self.rounds.round))
        if self.ranks.world == 1:
            self.stopping = self.stop.signal is not None
        # not while the loss is raised, since that may be the state no one wants back
        if done == trainer.steps or (self.save_due and self.watch.calm):
            self._save(done)
            self.save_due = False
        elif self.stopping:
            self._look_back(0)
            self.clock.stop()
            if self.watch.calm:
                self._save(done)
        if self.stopping and done < trainer.steps:  # after the last step a checkpoint is still to be written
            self._leave(done)

    def _leave(self, done: int) -> None:
        assert self.folder is not None, "nobody listens where nothing can be saved"
        newest = self.folder.newest
        why = "" if newest == done else " (the loss was raised since)"
        saved = f"step {newest} of {self.trainer.steps} is saved{why}" if newest else "no step is saved"
        raise self.stop.left(f"{saved} in {self.folder.path}: the same command goes on")

    def _enter_round(self, rounds: Rounds, step: int) -> None:
        """A new round takes the student as it is for its teacher, a continued one that of the round before."""
        number, student = rounds.round_of(step), None
        if number > 1 and rounds.begins(step):
            student = Checkpoint(self.student.built(rounds.snapshot), rounds.process, step_law=self._step_law)
        elif number > 1:
            assert self.folder is not None
            before = self.folder.load_round(number - 1, rounds.snapshot)
            weights = dict(plain(before.model).named_parameters())
            student = dataclasses.replace(before, model=self.student.holding(weights))  # shares what is not trained
        if rounds.begins(step):
            self.watch = LossWatch()  # a round's loss is not that of the round before
        rounds.enter(number, student)

    def _gradients(self, step: int) -> Tensor:
        """Backward through every micro-batch. Returns sums over all processes: `_terms`, and how many are to stop."""
        trainer = self.trainer
        first = self.ranks.rank * self.share
        sums: Tensor | None = None
        for start in range(first, first + self.share, self.micro_batch):
            count = min(self.micro_batch, first + self.share - start)
            batch = self.data.batch(step, start, count, trainer.batch)
            batch = dataclasses.replace(batch, tokens_BL=to_device(batch.tokens_BL, self.ranks.device))
            _seed_dropout(self.ranks.device, seed_of(trainer.seed, "dropout", step, start))
            with self.student.wrapped.accumulating(last=start + count == first + self.share):
                with self._autocast():
                    loss, terms = self.student.wrapped.call(partial(self._forward, batch=batch, step=step))
                loss.backward()
            sums = terms if sums is None else sums + terms
        assert sums is not None
        stopping = sums.new_full((1,), float(self.stop.signal is not None))
        return self.ranks.sum(torch.cat([sums, stopping]))

    def _forward(self, student: nn.Module, *, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        noise = stream(self.trainer.seed, "noise", step)  # the same for every micro-batch and process
        output = self.objective(student, batch, step=step, generator=noise)  # type: ignore[arg-type]
        return _terms(output, self.objective.regions)

    def _look_back(self, behind: int) -> None:
        """Take in the numbers of all steps but the newest `behind`; raises UserError for the first that went wrong."""
        for step, (loss, norm, *sums, stopping) in self.arrivals.take(behind):
            self.stopping |= stopping > 0
            if trouble := self.watch.trouble(loss, norm):
                raise self._stopped(step, trouble)
            self.window.add([*sums, norm])

    def _lr(self, step: int) -> float:
        trainer = self.trainer
        return learning_rate(step, peak=trainer.lr, warmup=trainer.warmup, decay=trainer.decay, steps=trainer.steps)

    def _stopped(self, step: int, trouble: str) -> UserError:
        if self.folder is None or not self.folder.newest:
            return UserError(f"training stopped at step {step + 1}: {trouble}; nothing was saved yet: use a lower lr")
        return UserError(
            f"training stopped at step {step + 1}: {trouble}; the last good checkpoint is {self.folder.checkpoint} "
            f"(step {self.folder.newest}), whole: start a new run from it (--from {self.folder.path}) with a lower lr"
        )

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.trainer.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.ranks.device.type, torch.bfloat16)

    # -- what it says --------------------------------------------------------------------------------------------

    def _open_log(self, start: int, stack: ExitStack) -> MetricsLog | None:
        if self.folder is None or not self.ranks.first:
            return None
        # a run that died before its first state has a line of step 0 and writes it again
        log = MetricsLog(self.folder.path, start or -1, tensorboard=self.trainer.tensorboard)
        stack.callback(log.close)
        return log

    def _report(self, done: int) -> None:
        """Means since the last line, over all processes."""
        loss_sum, weight_sum, scored, *rest = self.window.sums
        per_region, norm = rest[:-1], rest[-1]
        steps, loss = self.window.steps, loss_sum / weight_sum if weight_sum else 0.0
        values = {"loss": loss, "lr": self._lr(done - 1), "grad_norm": norm / steps}
        if len(self.objective.regions) > 1:
            for region, amount, weight in zip(self.objective.regions, per_region[::2], per_region[1::2], strict=True):
                values[f"loss_{region}"] = amount / weight if weight else 0.0
        # the head runs where there is loss; forwards counts a backward pass as two forward passes
        read = self.data.tokens(done - steps, done, self.trainer.batch)
        body, head = family_of(self.student.model).flops(self.student.model, read // (steps * self.trainer.batch))
        head *= scored / read
        per_token = self.objective.forwards * (body + head)
        speed = self.tokens / self.clock.seconds if self.clock.seconds else 0.0
        tokens = self.data.tokens(0, done, self.trainer.batch)
        self.total_seconds += self.clock.seconds
        values |= {"tokens": tokens, "tokens_per_s": speed, "mfu": speed * per_token / self.rate}
        values |= {"forwards": self.objective.forwards, "seconds": self.total_seconds}
        values |= self.rounds.numbers() if self.rounds else {}
        self.window, self.clock, self.tokens = Window(), Stopwatch(), 0
        if self.log:
            self.log.write(done, values)
        losses = {name.removeprefix("loss_"): f"{values[name]:.3f}" for name in values if name.startswith("loss")}
        self.progress.numbers(**losses, **{"tokens/s": short(speed), "MFU": f"{values['mfu']:.0%}"})

    def _evaluate(self, done: int) -> None:
        if self.held_out is None:
            return
        with self.student.averaged() as model:
            self.score = score = likelihood(
                model, self.held_out, sequences=self.trainer.eval_batches * self.trainer.batch, ranks=self.ranks,
                micro_batch=self.micro_batch, process=None if self.causal else self._process, autocast=self._autocast,
                own=getattr(self.objective, "scorer", None),
            )  # fmt: skip
            attention = self._attend(model, self.held_out)
        values = {score.kind: score.nats, f"{score.kind}_stderr": score.stderr, "perplexity": score.perplexity}
        look = self._look(score) if self.guard else None
        if self.log:
            self.log.write(done, values | {"sequences": score.sequences} | attention | (look.values if look else {}))
        beside = f", sample entropy {look.values['entropy']:.3f} nats" if look else ""
        self.progress.milestone(f"{score}{beside}")
        entropies = [value for name, value in attention.items() if name.startswith("attention_entropy")]
        news = self.attention.news(entropies) if self._masks else None
        if news and not (self.rounds and done == 0):  # of the teacher itself there is nothing to be done
            note(f"step {done}: {news}", self.ranks.first)
        if self.guard and look:
            self._act(self.guard, look, done)

    def _attend(self, model: Any, held_out: Data) -> dict[str, float]:
        """Entropy and largest logit of every block's attention, on a few held-out sequences, half masked."""
        z_BL = half_masked(held_out, model.mask_id if self._masks else None).to(self.ranks.device)
        with self._autocast():
            blocks = list(enumerate(family_of(model).attention(model, z_BL) or ()))
        entropies = {f"attention_entropy_{block}": entropy for block, (entropy, _) in blocks}
        return entropies | {f"attention_logit_{block}": largest for block, (_, largest) in blocks}

    @property
    def _masks(self) -> bool:
        """Whether the network reads masks: only of those is it known how sharply they attend at half masked."""
        return not self.causal and self.student.model.mask_id is not None

    def _look(self, score: HeldOutScore) -> Look:
        assert self.guard is not None
        student = Checkpoint(self.student.built("ema"), self._process, self.data.tokenizer, step_law=self._step_law)
        tau_product = self.rounds.tau_product if self.rounds else 1.0
        return self.guard.look(student, elbo=score.nats, tau_product=tau_product, device=self.ranks.device.type)

    def _act(self, guard: Guard, look: Look, done: int) -> None:
        """Warn of what is new, or stop."""
        if guard.action == "stop" and look.crossed:
            good = self.folder.newest if self.folder else 0
            saved = f"step {good} is saved" if good else "nothing was saved yet"
            raise UserError(
                f"the guard stopped the run at step {done}: {'; '.join(look.crossed.values())}; {saved}: "
                "go on with --guard warn, or start anew with tau nearer to 1"
            )
        if news := guard.news(look):
            note(f"guard, step {done}: {news}", self.ranks.first)

    # -- what it keeps -------------------------------------------------------------------------------------------

    def _save(self, done: int) -> None:
        if self.folder is None:
            return
        if self.log:
            self.log.settle()
        score = dataclasses.asdict(self.score) if self.score else None
        facts = {"step": done, "watch": self.watch.to_json(), "window": vars(self.window), "score": score}
        facts |= {"seconds": self.total_seconds + self.clock.seconds}
        facts |= {"guard": self.guard.to_json() if self.guard else None, "attention": sorted(self.attention.named)}
        self.folder.save(done, self.student.tensors(), facts, self.trainer.keep)
        if done < self.trainer.steps:  # the last one is written by `go`
            self._export(done)

    def _restore(self, step: int) -> None:
        assert self.folder is not None
        facts = self.folder.restore(step, self.student.tensors())
        with reading(self.folder.states()[step], "the training state", self.folder.cure(step)):
            self.watch.restore(facts["watch"])
            self.window = Window(**facts["window"])
            self.score = HeldOutScore(**facts["score"]) if facts["score"] else None
            self.total_seconds = float(facts["seconds"])
            self.attention.named = set(facts["attention"])
            if self.guard:
                self.guard.restore(facts["guard"])

    def _export(self, done: int) -> Checkpoint:
        return self._checkpoint(done, self.folder.checkpoint if self.folder else None)

    def _checkpoint(self, done: int, path: Path | None) -> Checkpoint:
        """The averaged weights; if there is a path, written with the raw ones beside them."""
        score = dataclasses.asdict(self.score) if self.score else None
        about = record(self.ranks.device, step=done, config=self.config, score=score)
        if self.rounds:
            about |= {"distillation": self.rounds.about()}
        model, tokenizer = self.student.built("ema"), self.data.tokenizer
        checkpoint = Checkpoint(model, self._process, tokenizer, about, self._step_law)
        if path is not None:
            raw = self.student.trained("raw")
            self.ranks.on_first(lambda: save(checkpoint, path, raw=raw))
        return checkpoint

    @property
    def _process(self) -> Process:
        return getattr(self.objective, "process", None) or Masked()

    @property
    def _step_law(self) -> StepLaw:
        """A student keeps the step law of its teacher."""
        return getattr(self.objective, "step_law", None) or Factorised()


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Dropout draws from its device's global generator. (torch.manual_seed would be slow: it seeks out all devices.)"""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _terms(output: LossOutput, regions: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """The loss to go backward from, and what is summed for the record.

    The sums: loss · weight, weight, tokens that the head ran on, then loss · weight and weight of each region.
    """
    weighted_BL = output.loss_BL * output.weight_BL
    seen_BL, loss = weighted_BL.detach(), weighted_BL.sum()
    wide = torch.float32 if seen_BL.device.type == "mps" else torch.float64
    sums = [seen_BL.sum(dtype=wide), output.weight_BL.sum(dtype=wide), (output.region_BL != IDENTITY).sum(dtype=wide)]
    if len(regions) > 1:
        for region in regions:
            here_BL = output.region_BL == REGIONS.index(region)
            sums += [(seen_BL * here_BL).sum(dtype=wide), (output.weight_BL * here_BL).sum(dtype=wide)]
    return loss, torch.stack(sums)
