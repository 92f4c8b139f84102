"""The harness's model: answers and likelihoods that depend on the request alone; bounds against enumeration."""

import json
import math
from functools import partial
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval.tasks import TaskManager
from tests.models.hub_folder import write_folder

import unmask
from unmask.cli.main import main
from unmask.models.denoiser import log_probs
from unmask.sampling.answers import answer
from unmask.studies.harness_model import DiffusionLM

HOW = {"plan": "confidence", "device": "cpu", "precision": "fp32", "batch": 3}
SETTINGS = {"max_new": 5, "steps": None, "temperature": 1.0, "views": 16, "seed": 4}


@pytest.fixture(scope="module")
def checkpoint(network, letters):
    return network(letters(20), 1)


def reader(checkpoint, **changed):
    return DiffusionLM(checkpoint, HOW, **{**SETTINGS, **changed})


def asked(*each):
    return [SimpleNamespace(args=args) for args in each]


def test_a_request_gets_the_same_answer_in_any_company(checkpoint):
    prompts = ["a b c", "d e f", "a b", "h i j k", "a a a", "c b a"]
    requests = asked(*((prompt, {"until": [], "max_gen_toks": 6}) for prompt in prompts))
    together = reader(checkpoint).generate_until(requests)
    alone = [reader(checkpoint).generate_until([request])[0] for request in requests]
    backwards = reader(checkpoint).generate_until(requests[::-1])[::-1]
    assert together == alone == backwards
    assert len(set(together)) > 3
    assert reader(checkpoint, seed=5).generate_until(requests) != together


def test_answers_end_at_the_tasks_stops_and_take_its_settings(checkpoint):
    free, short, cut = asked(
        ("a b", {"until": []}), ("a b", {"until": [], "max_gen_toks": 2}), ("a b", {"until": ["e", "d", "k", "a"]})
    )
    whole, brief, stopped = (reader(checkpoint).generate_until([one])[0] for one in (free, short, cut))
    assert len(brief.split()) <= 2 < len(whole.split()) <= 5
    assert not set("edka") & set(stopped)
    greedy = asked(("a b", {"do_sample": False}), ("a b", {"temperature": 0.0}))
    assert len(set(reader(checkpoint).generate_until(greedy))) == 1


def test_the_settings_say_how_answers_were_really_written(tmp_path):
    write_folder(tmp_path / "model")
    how = {**HOW, "cache": "dual", "block_size": 4}
    one = DiffusionLM(unmask.load(tmp_path / "model"), how, **SETTINGS)
    assert one.generate_until(asked(("Once", {"until": []})))
    said = one.settings()["answers"]
    assert (said["plan"]["name"], said["cache"]["approximate"]) == ("blocks(4, confidence)", True)


def test_a_threshold_decides_how_many_steps_there_are(checkpoint):
    one = DiffusionLM(checkpoint, {**HOW, "threshold": 0.01}, **SETTINGS)
    assert one.generate_until(asked(("a b", {"until": []})))[0]
    made = answer(checkpoint, [[0, 1]], 8, threshold=1e-9, **{**HOW, "batch": None})
    assert made.each[0].nfe == 1
    assert answer(checkpoint, [[0, 1]], 8, **HOW).each[0].nfe == 8


def test_likelihoods_depend_on_the_request_alone(checkpoint):
    requests = asked(("a b c", " d e"), ("a", " b c d"), ("", "a b"))
    together = reader(checkpoint).loglikelihood(requests)
    assert together == [reader(checkpoint).loglikelihood([request])[0] for request in requests]


@torch.no_grad()
def enumerated(checkpoint, context, continuation):
    """-ELBO by all subsets: the mean over orders of the sum of log p of each token given those before it."""
    model, ids = checkpoint.model, torch.tensor([*context, *continuation])
    first, total = len(context), 0.0
    orders = list(permutations(range(len(continuation))))
    for order in orders:
        z = ids.clone()
        z[first:] = model.mask_id
        for place in order:
            total += float(log_probs(model(z[None])[0, first + place], model.mask_id)[ids[first + place]])
            z[first + place] = ids[first + place]
    return total / len(orders)


def test_the_bound_is_the_elbo_of_the_continuation_and_its_error_is_honest(checkpoint):
    exact = enumerated(checkpoint, [0, 1], [2, 3, 4])
    rows = []
    for seed in range(25):
        one = reader(checkpoint, seed=seed, views=64)
        ((value, _),) = one.loglikelihood(asked(("a b", " c d e")))
        rows.append((value - exact) / one.bounds[0]["stderr"])
        assert one.bounds[0]["tokens"] == 3
    z = torch.tensor(rows)
    assert abs(float(z.mean())) < 4 * float(z.std()) / math.sqrt(len(rows)) + 1e-9  # without bias
    assert float(z.abs().max()) < 4
    assert float(z.std()) < 1.3  # stratified: the error stated is no less than the true one


def test_one_token_is_exact_and_greedy_is_found_out(checkpoint):
    letters = "abcdefghijklmnopqrs"
    one = reader(checkpoint)
    found = one.loglikelihood(asked(*(("a b", f" {letter}") for letter in letters)))
    assert {row["stderr"] for row in one.bounds} == {0.0}
    assert sum(math.exp(value) for value, _ in found) < 1 + 1e-6
    assert sum(greedy for _, greedy in found) == 1
    assert max(found)[1]


def test_a_rolling_likelihood_covers_the_whole_text(checkpoint):
    text = " ".join("abcdefgh" * 9)  # 72 tokens, of a model of 32
    one = reader(checkpoint)
    (value,) = one.loglikelihood_rolling(asked((text,)))
    assert sum(row["tokens"] for row in one.bounds) == 72
    assert value == pytest.approx(sum(row["bound"] for row in one.bounds))


@pytest.fixture
def tasks(tmp_path):
    """Two tasks of local files: one that generates, one of several choices."""
    rows = [{"q": "a b c", "good": "d", "bad": "x"}, {"q": "b c", "good": "d", "bad": "a a"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    common = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "rows.jsonl"}}}}}
test_split: test
doc_to_text: "{{{{q}}}}"
"""
    writes = "task: writes\noutput_type: generate_until\ndoc_to_target: '{{good}}'\n"
    writes += "generation_kwargs: {until: ['z'], max_gen_toks: 4}\nmetric_list: [{metric: exact_match}]\n"
    picks = "task: picks\noutput_type: multiple_choice\ndoc_to_choice: '{{[good, bad]}}'\ndoc_to_target: 0\n"
    picks += "metric_list: [{metric: acc}]\n"
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, text in {"writes": writes, "picks": picks}.items():
        (folder / f"{name}.yaml").write_text(text + common)
    return folder


@pytest.mark.filterwarnings("ignore")  # the harness's own libraries warn
def test_tasks_of_local_files_run_by_command(tasks, checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    few = partial(TaskManager, include_defaults=False)  # its own tasks are thousands of files
    monkeypatch.setattr("lm_eval.tasks.TaskManager", few)
    unmask.save(checkpoint, tmp_path / "model")
    command = ["lm-eval", "--model", str(tmp_path / "model"), "--tasks", "writes", "picks", "--include", str(tasks)]
    command += ["--views", "8", "--device", "cpu", "--seed", "3"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "picks: acc" in shown
    assert "writes: exact_match" in shown
    rows = json.loads((tmp_path / "out" / "likelihoods.json").read_text())
    assert [row["request"] for row in rows][:2] == [["a b c", " d"], ["a b c", " x"]]
    assert all(row["stderr"] >= 0 and row["bound"] < 0 for row in rows)
    assert main([*command[:4], "no_such_task", "--views", "8"]) == 2


def test_a_chat_task_is_spelled_by_the_template(tmp_path):
    write_folder(tmp_path / "model")
    model = unmask.load(tmp_path / "model")
    one = DiffusionLM(model, HOW, **SETTINGS)
    text = one.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert one._encode(text) == model.chat("Hello")
