"""LoRA on a published model: fine-tuned on chats, distilled, read by peft on transformers' own class."""

import json

import pytest
import torch
from tests.models.hub_folder import write_folder

import unmask
from unmask.cli.main import main
from unmask.data.tokenizer import Tokenizer
from unmask.models.dit.network import DiT
from unmask.models.lora import base_of, config_of, merged
from unmask.processes import Uniform

QUICK = {
    "batch": 4, "device": "cpu", "tensorboard": False, "progress": False, "warmup": 2, "eval_batches": 1, "lr": 1e-2,
    "ema": 0.8, "lora": True, "lora_rank": 4, "lora_dropout": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llada") / "model"
    write_folder(folder)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    words = ["once", "upon", "a", "time", "small"]
    talks = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": f"{word} model"}]}
        for word in words * 8
    ]
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, talks)))
    return path


@pytest.fixture(scope="module")
def tuned(folder, chats, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "run"
    return out, unmask.train(chats, from_=folder, out=out, steps=25, eval_every=25, **QUICK)


def test_it_learns_the_answers(tuned):
    out, made = tuned
    elbos = [row["elbo"] for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "elbo" in row]
    assert elbos[-1] < elbos[0] - 0.5
    targets = {name.split(".")[-1] for name in config_of(made.model).target_modules}
    assert targets == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert not [name for name, _ in made.model.named_parameters() if "lm_head" in name and "lora" in name]


def test_peft_reads_it_on_transformers_own_class(tuned, folder):
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    out, made = tuned
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=96,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config)
    theirs.load_state_dict(unmask.load(folder).model.state_dict())
    whole = peft.PeftModel.from_pretrained(theirs, str(out / "checkpoint")).merge_and_unload().state_dict()
    ours = merged(made.model).state_dict()
    assert ours.keys() == whole.keys()
    for name, value in ours.items():
        assert torch.allclose(value, whole[name], atol=1e-6), name
    assert not torch.equal(ours["model.layers.0.mlp.down_proj.weight"],
                           unmask.load(folder).model.state_dict()["model.layers.0.mlp.down_proj.weight"])  # fmt: skip


def test_it_answers_a_chat_with_the_adapter_and_merged_alike(tuned, folder, tmp_path):
    out, _ = tuned
    assert main(["convert", str(out), str(tmp_path / "whole"), "--merge"]) == 0
    loaded = {name: unmask.load(name) for name in (str(out), str(tmp_path / "whole"))}
    answers = [unmask.sample(one, chat="a", max_new=6, steps=6, seed=1, device="cpu").tokens for one in loaded.values()]
    assert torch.equal(*answers)
    assert base_of(loaded[str(tmp_path / "whole")].model) is None


@pytest.mark.parametrize("method", ["mcd", "sdtt", "cd4lm"])
def test_it_is_distilled_on_the_same_file(method, folder, chats):
    options = {"rounds": 2, "round_steps": 3, **QUICK, **({"delta": 0.25} if method != "cd4lm" else {})}
    student = unmask.distill(folder, chats, method=method, **options)
    base = unmask.load(folder).model
    ids = torch.randint(280, (2, 20))
    assert not torch.allclose(student.model(ids), base(ids), atol=1e-3)


def test_a_base_in_bf16_stays_so_and_its_adapter_is_float32(folder, chats, tmp_path):
    source = unmask.load(folder)
    unmask.save(unmask.Checkpoint(source.model.bfloat16(), tokenizer=source.tokenizer), tmp_path / "half")
    made = unmask.train(chats, from_=tmp_path / "half", steps=2, eval_every=0, **QUICK)
    kinds = {(".lora_" in name, value.dtype) for name, value in made.model.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}


def test_prompts_need_a_model_to_begin_with(chats, folder, capsys):
    with pytest.raises(unmask.UserError, match="give it with --from"):
        unmask.train(chats, preset="tiny")
    with pytest.raises(unmask.UserError, match="leave out weights and wrap"):
        unmask.train(chats, from_=folder, wrap=True, **QUICK)
    with pytest.raises(unmask.UserError, match="not both"):
        unmask.train([chats, chats], from_=folder, **QUICK)


def test_a_process_that_keeps_no_prompts_is_refused_before_a_score_is_made_up(tmp_path, capsys):
    tokenizer = Tokenizer.train(["once upon a time"], 260)
    model = DiT(tokenizer.size, 24, hidden=16, cond=8, blocks=1, heads=2, time=True)
    unmask.save(unmask.Checkpoint(model, Uniform(), tokenizer), tmp_path / "duo")
    (tmp_path / "pairs.jsonl").write_text("\n".join([json.dumps({"prompt": "once", "answer": "upon"})] * 8))
    where = ["--from", tmp_path / "duo", "--data", tmp_path / "pairs.jsonl", "--out", tmp_path / "run"]
    assert main([*map(str, ["train", *where]), "--steps", "2", "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("unmask: prompts are given to a masked process only, and this one is uniform")
    assert said.count("\n") == 1
