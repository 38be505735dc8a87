"""The README's picture is of the comparison that lies beside it."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def picture(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "website")
    monkeypatch.delitem(sys.modules, "report_picture", raising=False)
    return __import__("report_picture")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_was_drawn_from_the_committed_comparison(picture, scheme):
    image = pytest.importorskip("PIL.Image").open(picture.pictures()[scheme])
    assert image.text[picture.CHECKSUM] == picture.checksum()
    assert image.size == tuple(picture.SIZE.values())


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_shows_the_comparison_that_its_command_makes(picture, page):
    text = (ROOT / page).read_text()
    compared = json.loads(picture.SOURCE.read_text())
    assert "halfstep compare digits" in text
    assert (compared["config"], compared["options"], compared["complete"]) == ("digits", [], True)
    assert all(str(path.relative_to(ROOT)) in text for path in picture.pictures().values())
