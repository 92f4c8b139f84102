"""`unmask play`: which models it plays with, and that it opens the page unless asked not to."""

import threading

import pytest

from unmask.core.errors import UserError
from unmask.server import verbs as playing
from unmask.server.verbs import PAGE, play


@pytest.fixture
def started(monkeypatch) -> dict:
    """What a server was started with, and the addresses that were opened."""
    seen: dict = {"opened": []}
    done = threading.Event()

    def run(engines, limits, *, port, page, started) -> None:
        seen.update(models=list(engines), port=port, page=page)
        if started is not None:
            started("http://127.0.0.1:1")
            assert done.wait(10)

    def opened(address: str) -> None:
        seen["opened"].append(address)
        done.set()

    monkeypatch.setattr(playing, "run_server", run)
    monkeypatch.setattr(playing.webbrowser, "open", opened)
    return seen


def test_the_bundled_models_are_there_and_the_page_opens(started) -> None:
    play()
    assert started["models"] == ["pocket", "pocket-mcd"]
    assert started["opened"] == ["http://127.0.0.1:1"]
    assert (started["page"] / "index.html").is_file()
    assert started["page"] == PAGE


def test_checkpoints_come_first_by_their_names(started, checkpoint, tmp_path) -> None:
    import unmask

    for name in ("mine", "pocket"):
        unmask.save(checkpoint, tmp_path / name)
    play([tmp_path / "mine", tmp_path / "pocket"], browser=False, port=7)
    assert started["models"] == ["mine", "pocket", "pocket-mcd"], "whose own is called pocket, plays with that"
    assert started["opened"] == []
    assert started["port"] == 7
    with pytest.raises(UserError, match="two models are called 'mine': rename one"):
        play([tmp_path / "mine", tmp_path / "other" / "mine"], browser=False)


def test_a_causal_model_is_refused(started) -> None:
    with pytest.raises(UserError, match="causal"):
        play(["pocket-judge"], browser=False)
