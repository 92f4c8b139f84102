"""The figure of docs/chain.md can be drawn, the same each time."""

import pytest

pytest.importorskip("matplotlib")

from tools.chain_figure import draw_figure


def test_the_figure_is_drawn_the_same_each_time(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_figure(tmp_path / name)
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn.startswith(b"<?xml")
    assert drawn == (tmp_path / "two.svg").read_bytes()
