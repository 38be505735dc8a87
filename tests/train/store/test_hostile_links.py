"""Run directories with links: files are replaced; a run that goes on follows directories."""

import shutil

import pytest

from halfstep.cli import main
from halfstep.train.loop.loop import train

OPTIONS = ("data.workers=0", "epochs=1", "average={decay: 0.5}", "recipe=bf16")
FILES = ["metrics.jsonl", "summary.json", "config.yaml", "environment.json", "classes.csv"]
FILES += ["confusion.csv", "tracking.json", "diagnosis.json", "diagnosis.txt"]


@pytest.fixture
def outside(tmp_path):
    """What lies beside the directory of the run, and must stay as it is."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    yield folder
    assert [each.name for each in folder.iterdir()] == ["mine.txt"]
    assert (folder / "mine.txt").read_text() == "mine"


@pytest.fixture
def theirs(pictures_run, outside):
    """A run that has only to be ended."""
    run = outside.parent / "run"
    shutil.copytree(pictures_run, run)
    (run / "summary.json").unlink()
    return run


def link(run, name, target):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(f"../outside/{target}")


@pytest.mark.parametrize("target", ["mine.txt", "not_there.txt"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "environment.json"])
def test_a_run_that_goes_on_replaces_links(pictures, theirs, name, target):
    link(theirs, name, target)
    train(pictures(*OPTIONS), theirs, quiet=True, go_on="auto")
    assert not (theirs / name).is_symlink()


@pytest.mark.parametrize("target", ["mine.txt", "not_there.txt"])
def test_a_run_in_place_of_another_follows_no_link(pictures, theirs, target):
    for name in FILES if target == "mine.txt" else set(FILES) - {"config.yaml"}:
        link(theirs, name, target)
    shutil.rmtree(theirs / "checkpoints")
    (theirs / "checkpoints").symlink_to("../outside")
    train(pictures(*OPTIONS), theirs, quiet=True, overwrite=True)
    assert not any((theirs / name).is_symlink() for name in [*FILES, "checkpoints"])


@pytest.mark.parametrize("target", ["mine.txt", "not_there.txt"])
def test_runs_with_links_are_listed(theirs, capsys, target):
    for name in set(FILES) - {"config.yaml"}:
        link(theirs, name, target)
    assert main(["runs", str(theirs.parent)]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_a_linked_directory_of_checkpoints_is_followed_by_a_run_that_goes_on(pictures, theirs):
    larger = theirs.parent / "larger_disk"
    (theirs / "checkpoints").rename(larger)
    (theirs / "checkpoints").symlink_to(larger)
    for file in larger.glob("last.pt"):
        file.unlink()
    train(pictures(*OPTIONS), theirs, quiet=True, go_on="auto")
    assert (theirs / "checkpoints").is_symlink()
    assert (larger / "last.pt").is_file()
