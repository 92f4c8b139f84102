"""What a live server lets through, and what it bears: wrong requests, slow, vanishing and many clients, its end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.server.conftest import LENGTH, listening, numbers, tiny

import unmask
from unmask.checkpoint.io import save
from unmask.core.errors import UserError
from unmask.server.guard import Guard
from unmask.server.limits import Limits
from unmask.server.metrics import Requests
from unmask.server.verbs import host_names, read_key

LONG = {"model": "tiny", "length": LENGTH, "steps": LENGTH}


def messages(answer: httpx.Response) -> list[dict]:
    """The messages of a stream of drafts."""
    return [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]


def test_drafts_tell_a_text_step_by_step(address, checkpoint):
    asked = {"model": "tiny", "prompt": "ab", "length": 20, "steps": 4, "seed": 9, "index": 2, "alternatives": 3}
    said = messages(httpx.post(f"{address}/v1/drafts", json=asked))
    assert [one["type"] for one in said] == ["start", "step", "step", "step", "step", "done"]
    start, *steps, done = said
    assert start["given"] == [True, True, *[False] * 18]
    assert (start["texts"][:3], start["steps"], start["plan"], start["length"]) == (["a", "b", None], 4, "comb", 20)
    written = unmask.sample(checkpoint, 3, 4, prompt="ab", length=20, seed=9, device="cpu")
    assert done["tokens"] == written.tokens[2].tolist()
    assert done["text"] == written.text[2]
    assert done["log_prob"] == pytest.approx(float(written.log_q[2].sum()))
    stood = list(start["tokens"])
    for step in steps:
        for change in step["changes"]:
            assert stood[change["position"]] is None
            assert len(change["alternatives"]) == 3
            stood[change["position"]] = change["token"]
    assert stood == done["tokens"]


def test_a_template_of_tokens_and_a_text_with_blanks_are_filled(address, checkpoint):
    ids = [97, None, None, 98]
    said = messages(httpx.post(f"{address}/v1/drafts", json={"model": "tiny", "tokens": ids, "seed": 1}))[-1]
    assert (said["tokens"][0], said["tokens"][3]) == (97, 98)
    asked = {"model": "tiny", "infill": "a ___ b ____", "seed": 4, "steps": 3, "n": 2}
    filled = httpx.post(f"{address}/v1/infill", json=asked).json()
    written = unmask.sample(checkpoint, 2, 3, infill="a ___ b ____", seed=4, device="cpu")
    assert [one["text"] for one in filled["choices"]] == written.text
    assert [one["log_prob"] for one in filled["choices"]] == pytest.approx(written.log_q.sum(1).tolist())
    first = filled["choices"][0]
    assert f"a{first['blanks'][0]} b{first['blanks'][1]}" == first["text"]
    assert [q is None for q in first["log_probs"]] == written.given[0].tolist()
    assert filled["usage"] == {"prompt_tokens": 3, "completion_tokens": 14, "total_tokens": 17}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nothing", b"[]", b"3", b'"text"', b"[" * 50_000, 
        b'{"model": "tiny", "seed": 1' + b"0" * 9000 + b"}",
        b"\xff\xfe", b'{"model": 3}', b'{"model": "tiny", "steps": "8"}', b'{"model": "tiny", "steps": 2.5}',
        b'{"model": "tiny", "length": 0}', b'{"model": "tiny", "length": 1000}', b'{"model": "tiny", "prompt": ["a"]}',
        b'{"model": "tiny", "tokens": []}', b'{"model": "tiny", "tokens": [97]}', b'{"model": "tiny", "tokens": [-1]}',
        b'{"model": "tiny", "temperature": NaN}', b'{"model": "tiny", "temperature": 1e999}',
        b'{"model": "tiny", "infill": "no blank"}', b'{"model": "tiny", "infill": "___", "prompt": "a"}',
        b'{"model": "tiny", "alternatives": 1000}', b'{"model": "tiny", "remask": "cap"}', b"{}",
        b'{"model": "tiny", "prompt": "\\ud800"}',
    ],
)  # fmt: skip
def test_a_wrong_body_gets_one_line(address, body):
    for path in ("drafts", "infill", "completions", "chat/completions"):
        answer = httpx.post(f"{address}/v1/{path}", content=body, headers={"content-type": "application/json"})
        if path == "completions" and body == b'{"model": "tiny", "prompt": ["a"]}':
            continue
        assert answer.status_code == 400, (path, answer.text)
        assert "\n" not in answer.json()["error"]["message"]
    assert httpx.get(f"{address}/health").status_code == 200


def test_other_addresses_and_methods_are_not_there(address):
    for path in ("", "v1", "v1/drafts/../../etc/passwd", "docs", "openapi.json", "%2e%2e/etc/passwd"):
        assert httpx.get(f"{address}/{path}").status_code in (404, 405)
    assert httpx.get(f"{address}/v1/drafts").status_code == 405
    assert httpx.post(f"{address}/v1/drafts", content=b'{"model": "tiny"}').status_code == 400, (
        "JSON must be said to be"
    )


def test_a_huge_body_is_not_read(checkpoint):
    with listening(checkpoint, Limits(max_body=1000, patience=5)) as address:
        asked = {"content": b"x" * 1001, "headers": {"content-type": "application/json"}}
        assert httpx.post(f"{address}/v1/drafts", **asked).status_code == 413
        asked["content"] = iter([b"x" * 600] * 2)  # chunked: nothing says beforehand how long it is
        assert httpx.post(f"{address}/v1/drafts", **asked).status_code == 413
        asked = {"model": "tiny", "infill": "____" + "x" * 800}
        assert httpx.post(f"{address}/v1/drafts", json=asked).status_code == 400, "small enough to be read"


def raw(address: str, text: str = "") -> socket.socket:
    """A connection that has said so much."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    connected = socket.create_connection((host, int(port)), timeout=20)
    connected.sendall(text.encode())
    return connected


def test_a_slow_client_is_let_go(checkpoint):
    with listening(checkpoint, Limits(patience=0.5)) as address:
        host = f"Host: {address.removeprefix('http://')}\r\n"
        silent, head = raw(address), raw(address, "POST /v1/drafts HTTP/1.1\r\n" + host)
        body = raw(address, f"POST /v1/drafts HTTP/1.1\r\n{host}Content-Length: 99\r\n\r\n{{")
        assert silent.recv(100) == b""
        assert head.recv(100) == b""
        assert body.recv(100).startswith(b"HTTP/1.1 408")
        for one in (silent, head, body):
            one.close()
        assert httpx.get(f"{address}/health").status_code == 200


@pytest.fixture
def many_files():
    """Both ends of every connection are in this process, and a user's usual limit is 1,024 files."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 4096:
        pytest.skip(f"no more than {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_connections_leave_room_for_those_who_ask(address, many_files):
    with ExitStack() as held:
        for _ in range(1000):
            held.enter_context(raw(address))
        asked = {"model": "tiny", "length": 8, "steps": 2}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: httpx.post(f"{address}/v1/drafts", json=asked), range(16)))
        assert [one.status_code for one in answers] == [200] * 16
        assert len({messages(one)[-1]["text"] for one in answers}) == 1


def wait_for(address: str, name: str, least: float) -> None:
    for _ in range(500):
        if numbers(address)[name] >= least:
            return
        time.sleep(0.02)
    raise AssertionError((name, numbers(address)))


@pytest.mark.parametrize("path", ["drafts", "infill", "completions"])
def test_a_client_that_goes_frees_its_slot(checkpoint, path, monkeypatch):
    step = unmask.server.engine.take_step
    monkeypatch.setattr("unmask.server.engine.take_step", lambda *given: (time.sleep(0.05), step(*given))[1])
    asked = {"model": "tiny", "steps": LENGTH}
    asked |= {"max_tokens": LENGTH} if path == "completions" else {"infill": "_" * LENGTH} if path == "infill" else {}
    body = json.dumps(asked)
    with listening(checkpoint) as address:
        host = f"Host: {address.removeprefix('http://')}\r\nContent-Type: application/json\r\n"
        gone = raw(address, f"POST /v1/{path} HTTP/1.1\r\n{host}Content-Length: {len(body)}\r\n\r\n{body}")
        wait_for(address, 'unmask_texts_running{model="tiny"}', 1)
        gone.close()
        wait_for(address, 'unmask_texts_cancelled_total{model="tiny"}', 1)
        assert numbers(address)['unmask_texts_total{model="tiny"}'] == 0
        assert numbers(address)['unmask_texts_running{model="tiny"}'] == 0


def test_a_text_that_takes_too_long_is_given_up(checkpoint, monkeypatch):
    step = unmask.server.engine.take_step
    monkeypatch.setattr("unmask.server.engine.take_step", lambda *given: (time.sleep(0.05), step(*given))[1])
    with listening(checkpoint, Limits(timeout=0.3)) as address:
        said = messages(httpx.post(f"{address}/v1/drafts", json=LONG))
        assert said[-1] == {"type": "error", "message": "not done within 0.3 s: ask for less, or later"}
        asked = {"model": "tiny", "infill": "_" * LENGTH, "steps": LENGTH}
        assert httpx.post(f"{address}/v1/infill", json=asked).status_code == 504
        wait_for(address, 'unmask_texts_cancelled_total{model="tiny"}', 2)


def test_a_full_queue_says_so(checkpoint, monkeypatch):
    step = unmask.server.engine.take_step
    monkeypatch.setattr("unmask.server.engine.take_step", lambda *given: (time.sleep(0.005), step(*given))[1])
    with listening(checkpoint, Limits(max_queue=2), batch=1) as address, ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: httpx.post(f"{address}/v1/drafts", json=LONG, timeout=60), range(20)))
    codes = [one.status_code for one in answers]
    assert set(codes) == {200, 429}
    refused = next(one for one in answers if one.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_only_this_machines_names_and_own_pages_may_ask(address, checkpoint):
    own = address.removeprefix("http://")
    wrong = ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "[", "localhost@evil.example"]
    for host in wrong:
        assert httpx.get(f"{address}/v1/models", headers={"Host": host}).status_code in (400, 421), host
    for host in (own, "localhost", "LOCALHOST:1", "[::1]:8"):
        assert httpx.get(f"{address}/v1/models", headers={"Host": host}).status_code == 200, host
    asked = {"model": "tiny", "length": 4, "steps": 1}
    for origin in ("https://evil.example", "null", f"http://evil.example:{own.rpartition(':')[2]}"):
        assert httpx.post(f"{address}/v1/drafts", json=asked, headers={"Origin": origin}).status_code == 403, origin
    assert httpx.post(f"{address}/v1/drafts", json=asked, headers={"Origin": address}).status_code == 200
    with listening(checkpoint, hosts=["mine.example"], origins=["https://page.example"]) as other:
        mine = {"Host": "mine.example", "Origin": "https://page.example"}
        assert httpx.get(f"{other}/v1/models", headers=mine).status_code == 200
        assert httpx.get(f"{other}/v1/models").status_code == 421


def test_a_key_is_asked_for_where_there_is_one(checkpoint):
    with listening(checkpoint, key="söcret") as address:
        for given in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic söcret".encode()}):
            for path in ("v1/models", "v1/nothing", "metrics"):
                answer = httpx.get(f"{address}/{path}", headers=given)
                assert answer.status_code == 401
                assert "söcret" not in answer.text
        right = {"Authorization": "Bearer söcret".encode()}
        assert httpx.get(f"{address}/v1/models", headers=right).status_code == 200
        assert httpx.get(f"{address}/health").status_code == 200, "a balancer has no key"


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_API_KEY", "of-environment")
    assert read_key(None) == "of-environment"
    (tmp_path / "key").write_text("of-file\n")
    assert read_key(tmp_path / "key") == "of-file"
    for wrong in ("", "two words"):
        (tmp_path / "key").write_text(wrong)
        with pytest.raises(UserError, match="one word was expected"):
            read_key(tmp_path / "key")


def test_every_address_needs_names():
    with pytest.raises(UserError, match="say with --hosts"):
        host_names("0.0.0.0", [])
    assert host_names("0.0.0.0", ["Mine.example"])[-1] == "mine.example"


def test_a_page_is_shown_and_nothing_beside_it(checkpoint, tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<p>here</p>")
    (tmp_path / "secret").write_text("secret")
    with listening(checkpoint, page=tmp_path / "page", key="k") as address:
        assert httpx.get(address).text == "<p>here</p>"
        for path in ("../secret", "%2e%2e/secret", "..%2fsecret", "/secret"):
            assert httpx.get(f"{address}/{path}").status_code == 404


def test_metrics_count(checkpoint):
    with listening(checkpoint) as address:
        asked = {"model": "tiny", "infill": "_" * 12, "steps": 3, "n": 4}
        assert httpx.post(f"{address}/v1/infill", json=asked).status_code == 200
        httpx.post(f"{address}/v1/infill", json={})
        found = numbers(address)
    assert found['unmask_requests_total{path="/v1/infill",status="200"}'] == 1
    assert found['unmask_requests_total{path="/v1/infill",status="400"}'] == 1
    assert found['unmask_request_seconds_bucket{path="/v1/infill",le="+Inf"}'] == 2
    assert found['unmask_request_seconds_count{path="/v1/infill"}'] == 2
    assert found['unmask_tokens_total{model="tiny"}'] == 48
    assert found['unmask_texts_total{model="tiny"}'] == 4
    assert found['unmask_rows_total{model="tiny"}'] == 12
    assert 3 <= found['unmask_forwards_total{model="tiny"}'] <= 12


def test_every_model_has_an_engine_of_its_own(checkpoint):
    other = tiny(length=24, seed=1)
    with listening(checkpoint, others={"second": other}) as address:
        ids = [one["id"] for one in httpx.get(f"{address}/v1/models").json()["data"]]
        asked = {"infill": "a ____________", "seed": 3, "steps": 4}
        texts = [
            httpx.post(f"{address}/v1/infill", json={"model": name, **asked}).json()["choices"][0]["text"]
            for name in ids
        ]
    assert ids == ["tiny", "second"]
    for model, text in zip((checkpoint, other), texts, strict=True):
        assert text == unmask.sample(model, 1, 4, infill=asked["infill"], seed=3, device="cpu").text[0]


def test_a_client_that_does_not_take_its_answer_is_let_go():
    async def answering(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"never taken"})

    async def sent(message):
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    async def received():
        return {"type": "http.request", "body": b"", "more_body": False}

    requests = Requests()
    guard = Guard(answering, Limits(patience=0.05), requests)
    scope = {"type": "http", "path": "/health", "headers": [(b"host", b"localhost")], "method": "GET"}
    asyncio.run(guard(scope, received, sent))
    assert requests.answered == {("/health", 499): 1}
    assert requests.running == 0


# --- the process ------------------------------------------------------------------------------------------------------


def start(folder: Path, *options: str) -> tuple[subprocess.Popen, str]:
    """`unmask serve` in a process of its own, and its address."""
    words = ["serve", "--model", f"tiny={folder}", "--device", "cpu", "--threads", "1", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    line = process.stdout.readline()
    address = line.split(" at ")[1].split()[0]
    for _ in range(500):
        try:
            httpx.get(f"{address}/health")
            return process, address
        except httpx.HTTPError:
            time.sleep(0.02)
    raise AssertionError(line)


def test_a_server_that_ends_finishes_what_runs(checkpoint, tmp_path):
    save(checkpoint, tmp_path / "tiny")
    process, address = start(tmp_path / "tiny", "--port", "0")
    found: list[httpx.Response] = []
    asked = {"model": "tiny", "infill": "_" * LENGTH, "steps": LENGTH, "n": 16, "plan": "confidence"}
    asking = threading.Thread(target=lambda: found.append(httpx.post(f"{address}/v1/infill", json=asked, timeout=60)))
    asking.start()
    wait_for(address, 'unmask_texts_running{model="tiny"}', 1)
    process.send_signal(signal.SIGTERM)
    asking.join(60)
    said = process.communicate(timeout=60)[1]
    assert [one.status_code for one in found] == [200]
    assert len(found[0].json()["choices"]) == 16
    assert (process.returncode, said) == (0, "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")
