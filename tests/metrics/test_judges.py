"""Judges of every kind against the networks they wrap, and what is said when there is none."""

import json
import math
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.small import shaken

from unmask.checkpoint.io import Checkpoint, save
from unmask.core.errors import UserError
from unmask.data.tokenizer import EOS, Tokenizer
from unmask.metrics import hugging_face, judges
from unmask.metrics.gen_ppl import gen_ppl
from unmask.metrics.judges import load_judge, vocabulary_hash
from unmask.metrics.path_gap import WHOLE
from unmask.metrics.reading import judge_rows
from unmask.metrics.texts import Texts
from unmask.models.dit.network import DiT

TEXT = "the cat sat on the mat, and the dog sat on the cat; then the mat was sat on by all of them. " * 8
NEEDS = "transformers is not installed: pip install 'unmask[eval]'"


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train([TEXT], 300)


def network(tokenizer, causal=True):
    model = DiT(tokenizer.size + 1, 32, hidden=16, cond=8, blocks=2, heads=2, causal=causal).eval()
    return Checkpoint(shaken(model), tokenizer=tokenizer)


def blocks(tokenizer, length=24):
    ids = tokenizer.encode(TEXT)
    return Texts(torch.tensor(ids[: 3 * length]).view(3, length), tokenizer)


def direct(logits_BTV, ids_BT):
    """Summed -log p of every token but the first, text by text."""
    log_p_BTV = logits_BTV[:, :-1].log_softmax(-1)
    return -log_p_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0].sum(1)


def test_our_own_causal_model_from_a_folder(bpe, tmp_path):
    checkpoint = network(bpe)
    save(checkpoint, tmp_path / "judge")
    judge = load_judge(tmp_path / "judge", device="cpu")
    texts = blocks(bpe)
    nll_B = direct(checkpoint.model(texts.tokens_TL)[..., : bpe.size], texts.tokens_TL)
    found = gen_ppl(texts, judge, protocol="sdtt")
    assert found.ppl.value == pytest.approx(math.exp(float(nll_B.mean().detach()) / 23), rel=1e-5)
    assert (judge.context, judge.eos_id, judge.start_id) == (32, bpe.eos_id, bpe.eos_id)
    assert judge.id == load_judge(checkpoint, device="cpu").id  # the weights name it, not the place
    assert judge.vocabulary == vocabulary_hash(bpe)


def test_a_text_as_long_as_the_judge_is_scored_from_its_first_token(bpe):
    """32 tokens after the start token: the last one is only predicted, so that all of it fits at once."""
    checkpoint, texts = network(bpe), blocks(bpe, 32)
    said = judge_rows(load_judge(checkpoint, device="cpu"), texts.rows, WHOLE)
    read_BT = torch.cat([torch.full((3, 1), bpe.eos_id), texts.tokens_TL], dim=1)
    logits_BTV = checkpoint.model(read_BT[:, :-1])[..., : bpe.size]
    nll_B = -logits_BTV.log_softmax(-1).gather(-1, read_BT[:, 1:, None])[..., 0].sum(1)
    assert said[0].tolist() == pytest.approx(nll_B.tolist(), rel=1e-5)
    assert said[1].tolist() == [32, 32, 32]


def test_the_judges_entropy_is_read_where_it_is_asked_for(bpe):
    """The state of the mask has no probability: it adds 0 to the entropy, not NaN."""
    checkpoint, texts = network(bpe), blocks(bpe, 32)
    judge = load_judge(checkpoint, device="cpu")
    asked, not_asked = (judge_rows(judge, texts.rows, replace(WHOLE, entropy=on)) for on in (True, False))
    read_BT = torch.cat([torch.full((3, 1), bpe.eos_id), texts.tokens_TL[:, :-1]], dim=1)
    p_BTV = checkpoint.model(read_BT)[..., : bpe.size].double().softmax(-1)
    entropy_B = torch.distributions.Categorical(p_BTV).entropy().sum(1)
    assert asked[2].tolist() == pytest.approx(entropy_B.tolist(), rel=1e-5)
    assert all(map(math.isnan, not_asked[2].tolist()))
    assert torch.equal(not_asked[0], asked[0])


def test_what_is_no_judge_is_refused_in_one_line(bpe, tmp_path):
    with pytest.raises(UserError, match=r"masked model.*--objective ar"):
        load_judge(network(bpe, causal=False), device="cpu")
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(UserError, match="no GGUF model"):
        load_judge(tmp_path / "notes.txt", device="cpu")
    with pytest.raises(UserError, match=r"holds no model \(no config.json\): take smollm2 or gemma3, .*GGUF"):
        load_judge(tmp_path, device="cpu")


def test_without_transformers_the_user_hears_what_helps():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from unmask.metrics.judges import load_judge\n"
        "from unmask.core.errors import UserError\n"
        "for name in ('smollm2', 'gpt2-large'):\n"
        "    try: load_judge(name, device='cpu')\n"
        "    except UserError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 2
    assert all("pip install 'unmask[eval]'" in line and "unmask train" in line for line in said)


# --- transformers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2_folder(bpe, tmp_path_factory):
    """A small GPT-2 with random weights and our tokenizer, as Hugging Face keeps one."""
    transformers = pytest.importorskip("transformers", reason=NEEDS)
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=bpe.size, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(bpe.to_json())
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token=EOS).save_pretrained(
        folder
    )
    return folder


def test_a_hugging_face_folder(bpe, gpt2_folder):
    transformers = pytest.importorskip("transformers", reason=NEEDS)
    judge, texts = load_judge(gpt2_folder, device="cpu"), blocks(bpe)
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2_folder).eval()
    nll_B = direct(model(texts.tokens_TL).logits.detach(), texts.tokens_TL)
    for protocol in ("sdtt", "mdlm"):  # every text is its own canonical tokens, without ends: one number
        found = gen_ppl(texts, judge, protocol=protocol)
        assert found.ppl.value == pytest.approx(math.exp(float(nll_B.sum()) / (3 * 23)), rel=1e-5)
    assert (judge.context, judge.eos_id, judge.bos_id, judge.dtype) == (32, bpe.eos_id, None, "fp32")
    assert judge.encode([f"a {EOS} b"]) == [bpe.encode(f"a {EOS} b")]  # spelled out, not read as an end
    hidden = model(texts.tokens_TL, output_hidden_states=True).hidden_states[-1].detach()
    assert torch.allclose(judge.features(texts.tokens_TL), hidden, atol=1e-5)


def test_a_model_that_looks_ahead_is_refused(bpe, tmp_path):
    transformers = pytest.importorskip("transformers", reason=NEEDS)
    config = transformers.BertConfig(
        vocab_size=bpe.size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, initializer_range=1.0,
    )  # fmt: skip
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe._inner, eos_token=EOS).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="looks at what comes after"):
        load_judge(tmp_path, device="cpu")


def test_a_name_that_nobody_has_names_the_offline_choices(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason=NEEDS)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    choices = r".*smollm2 or gemma3.*GGUF file.*unmask train"
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be loaded" + choices):
        load_judge(tmp_path, device="cpu")
    with pytest.raises(UserError, match="on this machine, and the hub does not give it.*mean 'gpt2-large'" + choices):
        load_judge("gpt2-lareg", device="cpu")
    with pytest.raises(UserError, match="the hub does not give it .*Repo id must be" + choices):
        load_judge("not a/valid/name", device="cpu")


def test_a_snapshot_of_the_hub_needs_no_network_and_is_named_by_its_commit(bpe, gpt2_folder, tmp_path, monkeypatch):
    """As the hub's library keeps one; where the weights are missing, the download goes on."""
    hub = pytest.importorskip("huggingface_hub", reason=NEEDS)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit, home = "0" * 40, tmp_path / "models--openai-community--gpt2-large"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    snapshot = home / "snapshots" / commit
    shutil.copytree(gpt2_folder, snapshot)
    judge = load_judge("gpt2-large", device="cpu")
    assert judge.id == f"models--openai-community--gpt2-large@{commit}:fp32:None"
    assert (judge.name, judge.context) == ("gpt2-large", 32)
    asked = []

    def download(repo, **how):
        asked.append(how)
        if not how.get("local_files_only"):
            shutil.copy(gpt2_folder / "model.safetensors", snapshot)
        return str(snapshot)

    (snapshot / "model.safetensors").unlink()
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert hugging_face.from_hub("openai-community/gpt2-large") == snapshot
    assert [how.get("local_files_only", False) for how in asked] == [True, False]
    assert all("*.bin" not in how["allow_patterns"] for how in asked), "one kind of weights, not all there are"


PAYLOAD = """
from pathlib import Path
Path({proof!r}).write_text("run")
from transformers import {base}
class Evil({base}):
    model_type = "evil"
"""


def code_of_its_own(folder, proof, part):
    """Code beside a judge's config, its tokenizer or both, which leaves `proof` if it is run."""
    if part != "tokenizer":
        (folder / "configuration_evil.py").write_text(PAYLOAD.format(proof=str(proof), base="PretrainedConfig"))
        names = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoModel"), "configuration_evil.Evil")
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**settings, "model_type": "evil", "auto_map": names}))
    if part != "config":
        (folder / "tokenization_evil.py").write_text(PAYLOAD.format(proof=str(proof), base="PreTrainedTokenizerFast"))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": [None, "tokenization_evil.Evil"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_code_in_a_judges_folder_is_never_run(gpt2_folder, tmp_path):
    """transformers would ask on stdin, where 'y' runs it; its own guard holds without ours."""
    proof, parts = tmp_path / "proof", ("config", "tokenizer", "both")
    for part in parts:
        code_of_its_own(shutil.copytree(gpt2_folder, tmp_path / part), proof, part)
    code = (
        "import sys\nfrom unmask.core.errors import UserError\nfrom unmask.metrics import hugging_face, judges\n"
        "def load(folder):\n"
        "    try: judges.load_judge(folder, device='cpu')\n    except UserError as error: return error\n"
        "for folder in sys.argv[1:]: print(load(folder), file=sys.stderr)\n"
        "hugging_face._refuse_code = lambda *_: None\n"
        "for folder in sys.argv[1:]: load(folder)"
    )
    command = [sys.executable, "-c", code, *(str(tmp_path / part) for part in parts)]
    done = subprocess.run(command, input="y\n" * 99, capture_output=True, text=True)
    assert not proof.exists(), "the folder's code was run"
    assert (done.returncode, done.stdout) == (0, ""), "nothing is asked"
    said = done.stderr.splitlines()[: len(parts)]
    assert all(re.search(r" brings code of its own \(auto_map in .*\), which is never run: ", line) for line in said)


def test_a_gguf_file_is_unpacked_once(bpe, tmp_path, monkeypatch, slowed):
    """A Llama of two-wide heads (whose order GGUF does not change), written by hand and read back."""
    transformers = pytest.importorskip("transformers", reason=NEEDS)
    gguf = pytest.importorskip("gguf", reason=NEEDS)
    pytest.importorskip("accelerate", reason=NEEDS)
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=bpe.size, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=64, tie_word_embeddings=True, rms_norm_eps=1e-5,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path / "tiny.gguf"
    write_gguf(gguf, path, model.state_dict(), bpe)
    began = slowed(judges, "_unpack")
    with ThreadPoolExecutor(2) as both:
        places = list(both.map(lambda _: judges._unpacked(path), range(2)))
    assert (len(set(places)), len(began)) == (1, 1), "who comes second waits, and finds it unpacked"
    judge, texts = load_judge(path, device="cpu"), blocks(bpe)
    nll_B = direct(model(texts.tokens_TL).logits.detach(), texts.tokens_TL)
    assert gen_ppl(texts, judge, protocol="mdlm").ppl.value == pytest.approx(
        math.exp(float(nll_B.sum()) / 69), rel=1e-4
    )
    read = judge.features(texts.tokens_TL) @ model.lm_head.weight.T  # what MAUVE sees is what the head reads
    assert torch.allclose(read, model(texts.tokens_TL).logits, atol=1e-3)
    monkeypatch.setitem(sys.modules, "gguf", None)  # the second time it is not needed any more
    again = load_judge(path, device="cpu")
    assert (again.id, again.context) == (judge.id, 64)


def write_gguf(gguf, path, weights, bpe):
    content = json.loads(bpe.to_json())
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    writer = gguf.GGUFWriter(str(path), "llama")
    shape = {"context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 12, "head_count": 4,
             "head_count_kv": 4, "rope_dimension_count": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": bpe.size,
             "tokenizer_model": "gpt2"}  # fmt: skip
    for name, value in shape.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == EOS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    writer.add_eos_token_id(bpe.eos_id)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
        **{f"model.layers.0.self_attn.{x}_proj": f"blk.0.attn_{x}" for x in "qkv"},
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
        **{f"model.layers.0.mlp.{x}_proj": f"blk.0.ffn_{x}" for x in ("gate", "up", "down")},
    }
    for name, short in names.items():
        writer.add_tensor(f"{short}.weight", weights[f"{name}.weight"].numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
