import json
import subprocess
import sys

import pytest

from halfstep.compare.cells import directory as kept
from halfstep.compare.cells.directory import changed_since, claimed, prepare, result_of
from halfstep.compare.cells.results import Result
from halfstep.compare.output.tables import write_tables
from halfstep.yaml_text import parse


def finish(cell):
    prepare(cell)
    cell.run_directory.mkdir(exist_ok=True)
    (cell.run_directory / "summary.json").write_text('{"status": "finished"}')


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "comparison"


def test_only_the_very_same_settings_have_a_result(make_grid, directory):
    directory.mkdir()
    finish(make_grid().cells[0])
    assert result_of(make_grid().cells[0]).status == "finished"
    assert result_of(make_grid(lr=0.2).cells[0]).status == "pending"
    assert changed_since(make_grid(lr=0.2).cells[0]) == ["optimizer.lr: 0.1 -> 0.2"]
    assert changed_since(make_grid().cells[1]) == []


def test_a_result_of_another_number_of_processes_is_none(make_grid, directory):
    finish(make_grid().cells[0])
    two = make_grid(processes=2).cells[0]
    assert result_of(two).status == "pending"
    assert changed_since(two) == ["processes: not set -> 2"]
    finish(two)
    assert result_of(two).status == "finished"
    assert "processes" not in parse(two.config_file.read_text(), "config")
    assert changed_since(make_grid().cells[0]) == ["processes: 2 -> not set"]


@pytest.mark.parametrize("damaged", ["run/summary.json", "cell.json"])
def test_a_cell_with_half_of_its_files_is_run_again(make_grid, directory, damaged):
    directory.mkdir()
    cell = make_grid().cells[0]
    finish(cell)
    (cell.directory / damaged).write_text('{"sta')
    assert result_of(cell).status == "pending"
    (cell.directory / damaged).unlink()
    assert result_of(cell).status == "pending"


def test_preparing_a_cell_removes_its_last_run_and_writes_the_config_of_the_next(
    make_grid, directory
):
    directory.mkdir()
    finish(make_grid().cells[0])
    (make_grid().cells[0].run_directory / "checkpoints").mkdir()
    cell = make_grid(lr=0.2).cells[0]
    prepare(cell)
    assert not list(cell.run_directory.iterdir())
    assert parse(cell.config_file.read_text(), "config") == cell.settings
    assert result_of(cell).status == "pending"


def test_what_an_interrupted_run_left_stays_to_go_on_from(make_grid, directory):
    cell = make_grid().cells[0]
    prepare(cell)
    (cell.run_directory / "checkpoints").mkdir(parents=True)
    prepare(cell)
    assert (cell.run_directory / "checkpoints").exists()
    prepare(cell, fresh=True)
    assert not list(cell.run_directory.iterdir())


def test_other_versions_start_an_interrupted_run_anew(make_grid, directory, monkeypatch):
    cell = make_grid().cells[0]
    prepare(cell)
    assert json.loads((cell.directory / "cell.json").read_text())["versions"].keys() == {
        "halfstep",
        "torch",
    }
    (cell.run_directory / "checkpoints").mkdir(parents=True)
    monkeypatch.setattr(kept, "versions", lambda: {"torch": "3.0"})
    prepare(cell)
    assert not list(cell.run_directory.iterdir())


def test_a_finished_cell_that_runs_again_lies_aside_until_there_is_a_checkpoint(
    make_grid, directory
):
    cell = make_grid().cells[0]
    finish(cell)
    (cell.run_directory / "checkpoints").mkdir()
    (cell.run_directory / "checkpoints" / "best.pt").touch()
    again = make_grid(lr=0.2).cells[0]
    for _ in range(2):  # the second time, a crash at once has left nothing
        prepare(again)
        assert result_of(again).status == "pending"
        left = [str(each.relative_to(cell.run_directory)) for each in cell.run_directory.rglob("*")]
        assert {"replaced/summary.json", "replaced/checkpoints/best.pt"} < set(left)


def test_a_result_knows_what_it_was_made_with(make_grid, directory):
    cell = make_grid().cells[0]
    finish(cell)
    (cell.run_directory / "environment.json").write_text('{"torch": "2.15.0"}')
    assert result_of(cell).environment == {"torch": "2.15.0"}


def test_a_new_directory_is_made(directory):
    with claimed(directory / "deeper", "digits", []):
        assert (directory / "deeper").is_dir()


def test_a_comparison_killed_before_its_first_table_does_not_block_the_next(directory):
    with claimed(directory, "digits", []):
        (directory / ".comparison.json.1234.tmp").touch()
    with claimed(directory, "digits", []):
        pass


def test_a_second_comparison_in_the_same_directory_is_refused(directory):
    with (
        claimed(directory, "digits", []),
        pytest.raises(ValueError, match=r"in use by another comparison \(process \d+ on"),
        claimed(directory, "digits", []),
    ):
        pass


def test_a_run_that_outlives_its_comparison_keeps_the_directory_claimed(directory):
    with claimed(directory, "digits", []) as lock:
        orphan = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,)
        )
    with (
        pytest.raises(ValueError, match="or by a run that it started"),
        claimed(directory, "digits", []),
    ):
        pass
    orphan.communicate(b"\n")
    with claimed(directory, "digits", []):
        pass


def test_a_directory_with_other_files_is_refused_and_left_as_it_was(directory):
    directory.mkdir()
    (directory / "thesis.txt").touch()
    with (
        pytest.raises(ValueError, match="contains files that do not belong to a comparison"),
        claimed(directory, "digits", []),
    ):
        pass
    assert [path.name for path in directory.iterdir()] == ["thesis.txt"]


def test_a_comparison_of_another_config_is_refused(make_grid, directory):
    grid = make_grid(("fp32",))
    write_tables(directory, grid, [Result(grid.cells[0], "pending")])
    with (
        pytest.raises(ValueError, match="a comparison of 'digits', not of 'cifar'"),
        claimed(directory, "cifar", []),
    ):
        pass


def test_a_file_in_the_directorys_place_is_refused(directory):
    directory.touch()
    with pytest.raises(ValueError, match="is a file"), claimed(directory, "digits", []):
        pass


def test_a_place_that_cannot_be_written_is_refused(directory):
    directory.touch()
    with (
        pytest.raises(ValueError, match=r"cannot write into .*Not a directory"),
        claimed(directory / "below", "digits", []),
    ):
        pass


@pytest.mark.parametrize("name", ["", "run", "stdout.log", "config.yaml"])
def test_links_in_a_cell_that_lead_out_of_a_comparison_are_refused(make_grid, directory, name):
    grid = make_grid()
    finish(grid.cells[1])
    write_tables(directory, grid, [Result(cell, "pending") for cell in grid.cells])
    outside = directory.with_name("outside")
    link = grid.cells[1].directory / name
    if link.is_file():
        link.unlink()
    if link.exists():
        link.rename(outside)
    link.symlink_to(outside)
    named = directory.with_name("named")
    named.symlink_to(directory)
    with (
        pytest.raises(ValueError, match=f"'{link}' is a symbolic link to '{outside}', outside of"),
        claimed(directory, "digits", grid.cells),
    ):
        pass
    assert not (directory / ".lock").exists()
    link.unlink()
    with claimed(named, "digits", grid.cells):
        pass
