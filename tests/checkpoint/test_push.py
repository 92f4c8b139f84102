"""`unmask push` against a hub of our own on this machine: what it sends is what others load."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

pytest.importorskip("huggingface_hub")

import unmask
from unmask.checkpoint.push import push
from unmask.models.family import trainable
from unmask.models.lora import Lora, with_adapter

COMMIT = "c" * 40


def _oid(content):
    return hashlib.sha1(content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """The few calls of the hub's protocol that an upload and a download make; repositories live in memory."""

    repositories: dict[str, dict[str, bytes]]
    tokens: set[str]

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.split("?")[0]
        if path == "/api/repos/create":
            said = json.loads(body)
            name = "/".join(part for part in (said.get("organization"), said["name"]) if part)
            self.repositories.setdefault(name, {})
            return self._say({"url": f"http://{self.headers['Host']}/{name}", "id": name})
        if path == "/api/validate-yaml":
            return self._say({"errors": [], "warnings": []})
        name = "/".join(path.split("/")[3:5])
        if "/preupload/" in path:
            files = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                     for one in json.loads(body)["files"]]  # fmt: skip
            return self._say({"files": files})
        assert "/commit/" in path, path
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.repositories[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        url = f"http://{self.headers['Host']}/{name}/commit/{COMMIT}"
        return self._say({"commitUrl": url, "commitOid": COMMIT})

    def do_GET(self):
        path = self.path.split("?")[0].strip("/").split("/")
        if path[:2] == ["api", "models"]:
            name = "/".join(path[2:4])
            if name not in self.repositories:
                return self._say({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            if "tree" in path:
                return self._say([{"type": "file", "path": file, "size": len(content), "oid": _oid(content)}
                                  for file, content in self.repositories[name].items()])  # fmt: skip
            files = [{"rfilename": file} for file in self.repositories[name]]
            return self._say({"id": name, "modelId": name, "sha": COMMIT, "siblings": files})
        if path[0] == "api":
            return self._say({"error": "not here"}, 404)
        content = self.repositories["/".join(path[:2])][path[-1]]
        return self._send(content, 200, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def _say(self, value, status=200, headers=None):
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, content, status, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path):
    """(repositories, tokens seen, a function that runs `unmask ...` against it in a process of its own)."""
    kind = type("Fresh", (Hub,), {"repositories": {}, "tokens": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    where = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_HOME": str(tmp_path / "home")}
    environment = {**os.environ, **where, "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}

    def run(*words):
        command = [sys.executable, "-m", "unmask", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)

    yield kind.repositories, kind.tokens, run
    server.shutdown()
    server.server_close()


def test_a_checkpoint_is_pushed_with_a_card_and_loads_from_there(hub, network, letters, tmp_path):
    repositories, tokens, run = hub
    made = network(letters(20), 1, source=str(tmp_path / "secret-place" / "corpus"))
    unmask.save(made, tmp_path / "model")
    done = run("push", tmp_path / "model", "me/small", "--about", "A small model of letters.", "--licence", "MIT")
    assert done.returncode == 0, done.stderr
    assert f"/me/small/commit/{COMMIT}" in done.stdout
    files = repositories["me/small"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "provenance.json"} <= files.keys()
    card = files["README.md"].decode()
    for words in ("# me/small", "A small model of letters.", "MIT", 'unmask.load("me/small")', "--model me/small"):
        assert words in card
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    assert hashlib.sha256(files["model.safetensors"]).hexdigest() in card
    assert any("hf_secret" in token for token in tokens)
    written = run("sample", "--model", "me/small", "--steps", "4", "--device", "cpu", "--seed", "2", "-n", "1")
    ours = unmask.sample(tmp_path / "model", n=1, steps=4, device="cpu", seed=2)
    assert ours.text[0] in written.stdout, written.stderr


def test_an_adapter_is_pushed_and_names_a_base_that_others_have(hub, network, letters, tmp_path):
    repositories, _, run = hub
    base = network(letters(20), 1)
    unmask.save(base, tmp_path / "base")
    adapted = with_adapter(base.model, Lora(True, 2, 4.0, 0.0), str(tmp_path / "base"), 0)
    with torch.no_grad():
        for value in trainable(adapted).values():
            value.add_(0.3)
    unmask.save(unmask.Checkpoint(adapted, tokenizer=base.tokenizer), tmp_path / "adapter")
    about = ("--about", "It knows more letters.")
    refused = run("push", tmp_path / "adapter", "me/more", *about)
    assert refused.returncode == 2
    assert "which others cannot find: give its hub name with --base" in refused.stderr
    assert run("push", tmp_path / "base", "me/base", *about).returncode == 0
    done = run("push", tmp_path / "adapter", "me/more", *about, "--base", "me/base")
    assert done.returncode == 0, done.stderr
    files = repositories["me/more"]
    assert "model.safetensors" not in files
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "me/base"
    assert "LoRA of rank 2 on me/base" in files["README.md"].decode()
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    written = run("sample", "--model", "me/more", "--steps", "4", "--device", "cpu", "-n", "1")
    ours = unmask.sample(tmp_path / "adapter", n=1, steps=4, device="cpu")
    assert ours.text[0] in written.stdout, written.stderr


def test_a_hub_that_refuses_is_one_line(network, letters, tmp_path):
    unmask.save(network(letters(20), 1), tmp_path / "model")
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_x", "HF_HOME": str(tmp_path)}
    words = ["push", str(tmp_path / "model"), "me/small", "--about", "x"]
    done = subprocess.run([sys.executable, "-m", "unmask", *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "the hub did not take me/small" in done.stderr
    with pytest.raises(unmask.UserError, match="no hub name"):
        push(tmp_path / "model", "nowhere", about="x")
