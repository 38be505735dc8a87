"""What the site makes of the files of the repository's root, and of the command line."""

import sys
from pathlib import Path

import pytest

from halfstep.cli import app

WEBSITE = Path(__file__).parents[2] / "website"


@pytest.fixture
def generator(monkeypatch):
    """Import one of the modules that generate pages."""
    monkeypatch.syspath_prepend(WEBSITE)

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return load


@pytest.mark.parametrize(
    ("in_the_repository", "on_the_site"),
    [
        ("[doctor](docs/doctor.md#the-causes)", "[doctor](doctor.md#the-causes)"),
        ("[中文](README.zh.md)", "[中文](index.md)"),
        ("[what changed](CHANGELOG.md)", "[what changed](changelog.md)"),
        ("[the code](src/halfstep)", "the code"),
        ("[`act2` [2]](docs/activations.md)", "[`act2` [2]](activations.md)"),
        ("[torch](https://pytorch.org), [below](#try-it)",) * 2,
        ("![table](docs/images/table.png)", "![table](images/table.png)"),
        ('<source srcset="docs/images/dark.png">', '<source srcset="images/dark.png">'),
    ],
)
def test_links_of_the_root_become_links_of_the_site(generator, in_the_repository, on_the_site):
    assert generator("pages").relinked(in_the_repository) == on_the_site


def test_pictures_of_the_page_in_chinese_are_one_folder_up(generator):
    page = generator("pages").pages()["index.zh.md"]
    assert 'src="../images/report-light.png"' in page
    assert 'srcset="../images/report-dark.png"' in page


def test_the_title_of_a_cause_has_a_capital_but_its_identifiers_have_not(generator):
    title = generator("causes")._title
    assert title("the logarithm of zero") == "The logarithm of zero"
    assert title("unscale_ twice on the same gradients") == "unscale_ twice on the same gradients"
    assert title("fp16 parameters under a scaler") == "fp16 parameters under a scaler"


def test_the_page_of_commands_has_every_command_and_what_it_takes(generator):
    page = generator("commands").pages()["reference/commands.md"]
    sections = dict(each.split("\n", 1) for each in page.split("\n## ")[1:])
    assert {f"halfstep {each.name}" for each in app.registered_commands} <= set(sections)
    assert "halfstep data folds" in sections
    assert "| `--hold-back` |" in sections["halfstep doctor"]
    assert "| `CONFIG` |" in sections["halfstep train"]
    assert r"| `--checkpoint best\|last` |" in sections["halfstep export"]
    assert "Default: `best`." in sections["halfstep export"]
    assert "Default: `1`." in sections["halfstep compare"]
    assert "False" not in page
    examples = sections["halfstep advise"].split("```")[1].splitlines()
    assert examples[0] == "bash"
    assert len(examples) >= 3
    assert all(each.startswith("halfstep ") for each in examples[1:])
