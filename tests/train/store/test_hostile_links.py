"""Links in a directory of a run: none that leads out of it is written through."""

import shutil

import pytest

from halfstep.cli import main
from halfstep.errors import UserError
from halfstep.train.loop.loop import train
from halfstep.train.store import replaced, run_directory

OPTIONS = ("data.workers=0", "epochs=1", "average={decay: 0.5}", "recipe=bf16")
FILES = ["metrics.jsonl", "summary.json", "config.yaml", "environment.json", "classes.csv"]
FILES += ["confusion.csv", "tracking.json", "diagnosis.json", "diagnosis-1.txt", ".lock", "log.txt"]
FOLDERS = ["checkpoints", "tensorboard", "bundle", ".bundle", ".bundle-1", "export", "replaced"]
BELOW = ["checkpoints/last.pt", "checkpoints/step-00000002-0123abcd", "tensorboard/events"]


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
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


def content(run):
    """Return every file, and every link with its target."""
    return {
        each.relative_to(run): each.readlink() if each.is_symlink() else each.read_bytes()
        for each in run.rglob("*")
        if each.is_symlink() or each.is_file()
    }


TO_FILES = [(name, f"outside/{target}") for name in FILES for target in ("mine.txt", "not_there")]
TO_FILES.remove(("config.yaml", "outside/not_there"))  # no run at all, and refused as that
TO_FOLDERS = [(name, "outside") for name in [*FOLDERS, *BELOW]]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("name", "target"), [*TO_FILES, *TO_FOLDERS])
def test_links_out_of_a_run_are_refused_before_anything_is_written(
    pictures, theirs, name, target, overwrite
):
    link(theirs, name, theirs.parent / target)
    before = content(theirs)
    go_on = None if overwrite else "auto"
    with pytest.raises(UserError, match=f"{name}' is a symbolic link to '.*{target}', outside of"):
        train(pictures(*OPTIONS), theirs, quiet=True, go_on=go_on, overwrite=overwrite)
    assert content(theirs) == before


def test_a_link_to_a_link_is_seen_through(theirs):
    link(theirs, "aside", theirs.parent / "outside")
    link(theirs, "checkpoints", "aside")
    with (
        pytest.raises(UserError, match=r"checkpoints' is a symbolic link to .*outside"),
        run_directory.claimed(theirs),
    ):
        pass


def test_a_command_that_meets_such_a_link_says_so_in_a_line(theirs, pictures_file, capsys):
    link(theirs, "checkpoints", "../outside")
    assert main(["train", str(pictures_file), "--out", str(theirs), "--resume", "auto"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_that_goes_on_is_not_exported_through_a_link(theirs):
    link(theirs, "export", "../outside")
    assert main(["export", str(theirs), "--format", "safetensors"]) == 2


def test_links_within_a_run_and_to_its_directory_are_followed(pictures, theirs):
    (theirs / "checkpoints").rename(theirs / "kept")
    (theirs / "kept" / "last.pt").unlink()
    link(theirs, "checkpoints", "kept")
    link(theirs, "mine", "../outside")  # a name that no run writes
    named = theirs.with_name("named")
    named.symlink_to(theirs)
    train(pictures(*OPTIONS), named, quiet=True, go_on="auto")
    assert (theirs / "checkpoints").is_symlink()
    assert (theirs / "kept" / "last.pt").is_file()
    assert (theirs / "summary.json").is_file()


def test_nothing_is_taken_from_where_a_link_in_place_of_the_replaced_run_leads(theirs):
    link(theirs, "replaced", "../outside")
    replaced.put_back(theirs)


@pytest.mark.parametrize("target", ["mine.txt", "not_there.txt"])
def test_runs_with_links_are_listed(theirs, capsys, target):
    for name in set(FILES) - {"config.yaml"}:
        link(theirs, name, f"../outside/{target}")
    assert main(["runs", str(theirs.parent)]) == 0
    assert "Traceback" not in capsys.readouterr().err
