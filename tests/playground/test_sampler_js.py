"""From the same logits and the same seed, the static page writes what `unmask.sample` writes, to the token."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.playground.node import SOURCES, needs_node, run_node, write
from torch import Tensor

import unmask
from unmask.checkpoint.io import Checkpoint
from unmask.core.streams import stream
from unmask.data.tokenizer import Tokenizer
from unmask.plans.plan import USUAL

pytestmark = needs_node
LENGTH, CONTEXTS = 80, 97
OFFERED = (
    "iid", "permutation", "golden", "van_der_corput", "comb", "rotation", "stride", "dilated", "left_to_right",
    "confidence", "entropy", "blocks",
)  # fmt: skip


class Table:
    """Logits that depend on both neighbours and the place; no network."""

    mask_id, length, vocab_size = 8192, LENGTH, 8193

    def __init__(self) -> None:
        self.table = 3 * torch.randn(CONTEXTS, self.vocab_size, generator=stream(0, "table"))

    def features(self, z_BL: Tensor) -> Tensor:
        left_BL, right_BL = torch.zeros_like(z_BL), torch.zeros_like(z_BL)
        left_BL[:, 1:], right_BL[:, :-1] = z_BL[:, :-1], z_BL[:, 1:]
        return ((31 * left_BL + 17 * right_BL + 7 * torch.arange(z_BL.shape[1])) % CONTEXTS).double()[..., None]

    def logits(self, h: Tensor) -> Tensor:
        return self.table[h[..., 0].long()]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, dict[str, Any]]:
    """The same model for Python and for JavaScript."""
    folder, model, tokenizer = tmp_path_factory.mktemp("table"), Table(), Tokenizer.load("pocket")
    (folder / "table").write_bytes(model.table.numpy().tobytes())
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    about = {"length": LENGTH, "vocab_size": 8193, "mask_id": 8192}
    theirs = {"about": about, "table": str(folder / "table"), "tokenizer": str(folder / "tokenizer.json")}
    return Checkpoint(model, tokenizer=tokenizer), theirs


def agree(both: tuple[Checkpoint, dict[str, Any]], requests: list[dict[str, Any]]) -> None:
    checkpoint, theirs = both
    for request, said in zip(requests, write(requests, **theirs), strict=True):
        asked = {name: value for name, value in request.items() if name not in ("index", "tokens")}
        if "tokens" in request:
            asked["infill"] = torch.tensor([-1 if token is None else token for token in request["tokens"]])
        index = request.get("index", 0)
        expected = unmask.sample(checkpoint, n=index + 1, **asked)
        assert "error" not in said, (request, said)
        done = said["done"]
        assert done["tokens"] == expected.tokens[index, : len(done["tokens"])].tolist(), request
        assert done["text"] == expected.text[index]
        assert done["nfe"] == expected.nfe[index]
        assert said["start"]["given"] == expected.given[index, : len(done["tokens"])].tolist()
        assert done["log_prob"] == pytest.approx(float(expected.log_q[index].sum()), abs=1e-9)
        assert sum(len(step["changes"]) for step in said["steps"]) == said["start"]["given"].count(False)


@pytest.mark.parametrize("plan", OFFERED)
def test_every_plan_writes_the_same_tokens(plan: str, both: tuple[Checkpoint, dict[str, Any]]) -> None:
    """Lengths beside powers of two, steps that do and do not divide them, more steps than blanks, given words."""
    pieces: list[dict[str, Any]] = [
        {"length": 64, "steps": 8, "seed": 0},
        {"length": 61, "steps": 7, "seed": 1, "index": 2},
        {"length": 9, "steps": 24, "seed": 123456789},
        {"length": 33, "steps": 1, "seed": 3},
        {"length": 40, "steps": 2, "seed": 4},
        {"infill": "Once upon a ____ there was________ and the______________ came", "steps": 5, "seed": 5},
        {"prompt": "It was the best of times,", "length": LENGTH, "steps": 6, "seed": 6, "temperature": 0.7},
        {"tokens": [None, 17, None, None, 4000, 4, *[None] * 50, 3, None], "steps": 9, "seed": 7, "top_p": 0.8},
    ]
    agree(both, [{"plan": plan, **piece} for piece in pieces])


def test_where_nobody_says(both: tuple[Checkpoint, dict[str, Any]]) -> None:
    """Plan, steps and length; temperature 0; a temperature so high that all is noise."""
    agree(both, [{"seed": 1}, {"seed": 1, "temperature": 0.0, "plan": "confidence"}, {"seed": 2, "temperature": 5.0}])
    (said,) = write([{"seed": 1}], **both[1])
    assert said["start"]["plan"] == USUAL


def test_every_plan_of_the_page_is_tested() -> None:
    said = run_node(f'import {{ PLANS }} from "{SOURCES}/plans.js"; console.log(JSON.stringify(Object.keys(PLANS)))', 0)
    assert sorted(said) == sorted(OFFERED)


def test_alternatives_are_of_the_law_that_was_drawn_from(both: tuple[Checkpoint, dict[str, Any]]) -> None:
    request = {"length": 8, "steps": 1, "temperature": 0.5, "alternatives": 4}
    (said,) = write([request], **both[1])
    model = both[0].model
    logits_LV = model.logits(model.features(torch.full((1, 8), 8192)))[0].double()
    logits_LV[:, 8192] = -torch.inf
    law_LV = (logits_LV / 0.5).softmax(-1)
    for change in said["steps"][0]["changes"]:
        law_V = law_LV[change["position"]]
        assert change["probability"] == pytest.approx(float(law_V[change["token"]]), rel=1e-9)
        assert change["log_prob"] == pytest.approx(math.log(change["probability"]))
        best = law_V.topk(4)
        assert [one["token"] for one in change["alternatives"]] == best.indices.tolist()
        assert [one["probability"] for one in change["alternatives"]] == pytest.approx(best.values.tolist())


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"plan": "gold"}, "unknown plan 'gold': allowed: iid,"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"length": LENGTH + 1}, f"length must be between 1 and the model's {LENGTH}"),
        ({"prompt": "word " * 30, "length": 20}, "leaves no blank in 20"),
        ({"infill": "no blank"}, "the text has no blank"),
        ({"infill": "_" * 99}, "take 99 tokens, the model at most"),
        ({"tokens": [1, 9000, None]}, "tokens has the id 9000"),
        ({"tokens": [1, 2]}, "has no blank to fill"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"prompt": "a", "tokens": [None]}, "give only one of prompt, infill and tokens"),
    ],
)
def test_a_mistake_is_one_line(request_: dict[str, Any], said: str, both: tuple[Checkpoint, dict[str, Any]]) -> None:
    (answer,) = write([request_], **both[1])
    assert said in answer["error"]
    assert "\n" not in answer["error"]


# --- noise and tokenizer ----------------------------------------------------------------------------------------------


def test_noise_is_torchs_own_to_the_bit() -> None:
    """Many keys; numbers of every kind in turn; past the twister's first 624 words."""
    keys: list[list[Any]] = [[0, "draw", 0], [2**31 - 1, "reveal", 12345], [-3, "prior", 1], [7, "ö" * 70, 1]]
    script = f"""
    import {{ readFileSync }} from "node:fs";
    import {{ stream }} from "{SOURCES}/noise.js";
    const said = JSON.parse(readFileSync(0, "utf8")).map(key => {{
      const noise = stream(...key);
      return [[...noise.uniform(700)], noise.whole53(), noise.below(256), noise.uniform(), noise.below(2)];
    }});
    console.log(JSON.stringify(said));
    """
    for key, said in zip(keys, run_node(script, keys), strict=True):
        noise = stream(*key)
        assert said[0] == torch.rand(700, generator=noise, dtype=torch.float64).tolist()
        assert said[1] == int(torch.randint(1 << 53, (1,), generator=noise))
        assert said[2] == int(torch.randint(256, (1,), generator=noise))
        assert said[3] == float(torch.rand(1, generator=noise, dtype=torch.float64))
        assert said[4] == int(torch.randint(2, (1,), generator=noise))


def test_the_tokenizer_reads_and_spells_like_the_library(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load("pocket")
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    texts = ["", " ", "It was the best of times, it was the worst of times.", "  two  spaces\n\n\tand tabs \r\n ",
             "don't we'll I'd", "<|endoftext|>", "naïve café — “quotes” … 漢字 かな 한국어",
             "🙂 \u200d \u0085 \u00a0\u2003x\ufeff", "x1234567890 ²³ ½ ٣", "a" * 300, "___ -- !!??",
             "e\u0301 \u1e9b\u0323", "\x00\x01\x7f\x80"]  # fmt: skip
    letters = torch.randint(1, 0xD7FF, (300, 12), generator=torch.Generator().manual_seed(0)).tolist()
    texts += ["".join(map(chr, row)) for row in letters]
    rows = torch.randint(8193, (200, 9), generator=torch.Generator().manual_seed(1)).tolist()
    script = f"""
    import {{ readFileSync }} from "node:fs";
    import {{ Tokenizer }} from "{SOURCES}/tokenizer.js";
    const [file, texts, rows] = JSON.parse(readFileSync(0, "utf8"));
    const tokenizer = new Tokenizer(JSON.parse(readFileSync(file, "utf8")));
    const said = [texts.map(text => tokenizer.encode(text)), rows.map(row => tokenizer.decode(row))];
    console.log(JSON.stringify(said));
    """
    encoded, decoded = run_node(script, [str(tmp_path / "tokenizer.json"), texts, rows])
    for text, ids in zip(texts, encoded, strict=True):
        assert ids == tokenizer.encode(text), repr(text)
    assert decoded == [tokenizer.decode(row) for row in rows]
