"""What a plug-in adds is served as it is sampled: a process that draws every position at every step, without a mask."""

import math
import queue

import torch

import unmask
from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.sampling.drafts import How
from unmask.sampling.verbs import plan_and_grid
from unmask.server.drafts import total
from unmask.server.engine import Engine, Finished, Stepped, Task

STATES = 5


class Toy:
    """Logits of a token, its two neighbours and the time."""

    vocab_size, mask_id, length = STATES, None, 16
    table_VV = torch.randn(STATES, STATES, generator=stream(0, "toy"))

    def features(self, z_BL, time):
        near_BLV = sum(self.table_VV[z_BL.roll(by, 1)] for by in (-1, 0, 1))
        return near_BLV * (1 + time[:, None, None])

    def logits(self, h):
        return h


def test_texts_of_such_a_process_together_are_those_alone(plugin):
    checkpoint = Checkpoint(Toy(), process=plugin.AnyToken())
    engine, inbox = Engine(checkpoint, "toy", torch.device("cpu")), queue.SimpleQueue()
    engine.start()
    asked = [(5 + 3 * (i % 3), 2 + i % 4, i) for i in range(12)]  # length, steps, seed
    for length, steps, seed in asked:
        plan, grid = plan_and_grid(checkpoint.process, None, None, steps)
        how = How(checkpoint, plan, grid, seed=seed)
        engine.submit(Task(how, 0, torch.full((length,), -1), watch=True, alternatives=STATES),
                      lambda event, seed=seed: inbox.put((seed, event)))  # fmt: skip
    done, drawn = {}, {}
    while len(done) < len(asked):
        seed, event = inbox.get(timeout=60)
        if isinstance(event, Finished):
            done[seed] = event
        elif isinstance(event, Stepped):
            drawn.setdefault(seed, []).extend(event.changes)
    engine.stop()
    for length, steps, seed in asked:
        alone = unmask.sample(checkpoint, 1, steps, length=length, seed=seed, device="cpu")
        assert done[seed].tokens == alone.tokens[0].tolist()
        assert total(done[seed].log_q) is None, "the law of the text alone is not known"
        for change in drawn[seed]:
            assert math.isclose(dict(change.alternatives)[change.token], math.exp(change.log_prob), rel_tol=1e-9)
