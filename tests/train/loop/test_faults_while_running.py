"""What goes wrong around a run leaves it equal to one that nothing happened to, or to be resumed.

Full disks have a file of their own, `test_full_disk`; kills are in `test_kills`. A fault is forced
where a test can force it: a dead worker, memory that runs out while images are loaded, a read-only
mount. Where it is injected instead, the test says why.
"""

import errno
import itertools
import multiprocessing
import os
import resource
import shutil
import signal
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path

import file_systems
import pytest
from PIL import Image
from sameness import assert_same_run

from halfstep.errors import UserError
from halfstep.feed import decode
from halfstep.train.loop.loop import train
from halfstep.train.store import rotation
from halfstep.train.store.rotation import CheckpointWarning
from halfstep.train.store.run_directory import read_summary
from halfstep.train.task import metrics


def assert_resumes(pictures, run, whole):
    assert read_summary(run) is None
    train(pictures(), run, quiet=True, go_on="auto")
    assert_same_run(run, whole)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_directory_that_becomes_read_only_is_told_and_the_run_resumes(
    pictures, whole, tmp_path, monkeypatch, code
):
    """Injected, to have both errors wherever the test runs: root may write what no mode allows."""
    real, written = Path.replace, []

    def replace(source, target):
        written.append(target)
        if len(written) > 12:
            raise OSError(code, os.strerror(code), str(target))
        return real(source, target)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        patch.setattr(Path, "replace", replace)
        with pytest.raises(UserError, match=r"could not be written.*make room and write --resume"):
            train(pictures(), tmp_path / "run", quiet=True)
    assert_resumes(pictures, tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_directory_that_really_becomes_read_only_is_told_and_the_run_resumes(
    pictures, whole, tmp_path, monkeypatch
):
    real, run = rotation.save, tmp_path / "run"
    with ExitStack() as until_the_end, monkeypatch.context() as patch:

        def save(run, state, **given):
            if state.step == 4:
                until_the_end.enter_context(file_systems.read_only(run))
            return real(run, state, **given)

        patch.setattr(rotation, "save", save)
        until_the_end.enter_context(pytest.warns(CheckpointWarning, match="of step 4 could not be"))
        with pytest.raises(UserError, match=r"could not be written.*from step-00000003\.pt"):
            train(pictures(), run, quiet=True)
    assert_resumes(pictures, run, whole)


@pytest.mark.slow
def test_directory_that_really_is_read_only_is_refused_in_one_line(pictures, tmp_path):
    reasons = "Read-only file system|Permission denied"
    said = rf"^cannot write the run directory '[^\n]*': ({reasons}); write --out [^\n]*$"
    with file_systems.read_only(tmp_path), pytest.raises(UserError, match=said):
        train(pictures(), tmp_path / "run", quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_read_only_from_the_start_is_refused_in_one_line(
    pictures, tmp_path, monkeypatch
):
    """Injected, since it takes a mount to keep root from writing, which few places allow."""

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    said = r"cannot write the run directory .*: Permission denied"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(UserError, match=said):
            train(pictures(), tmp_path / "run", quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_clock_that_jumps_changes_nothing(pictures, whole, tmp_path, monkeypatch):
    """Injected: setting the machine's clock would disturb every other process on it."""
    real, jumps = time.time, itertools.cycle([0, -1e6, 1e6, -1e9, 1e9])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    train(pictures(), tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", whole)


def test_worker_that_dies_ends_the_run_in_one_line_and_it_resumes(
    pictures, whole, tmp_path, monkeypatch
):
    real = rotation.save

    def save(run, state, **given):
        if state.step == 4:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()
        return real(run, state, **given)

    with monkeypatch.context() as patch:
        patch.setattr(rotation, "save", save)
        with pytest.raises(UserError, match="a process that loads images has died") as error:
            train(pictures("data.workers=1"), tmp_path / "run", quiet=True)
    assert "\n" not in str(error.value)
    assert_resumes(pictures, tmp_path / "run", whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_memory_that_runs_out_while_loading_is_explained_and_the_run_resumes(
    pictures, whole, tmp_path, monkeypatch, workers
):
    """Injected, to strike in the middle of the run; the test after it forces it, at the start."""
    real, reads = decode.read_image, []

    def read(*args, **given):
        reads.append(None)
        if len(reads) > 60:
            raise MemoryError
        return real(*args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "read_image", read)
        with pytest.raises(UserError, match="there is not enough memory for batches of 4 images"):
            train(pictures(f"data.workers={workers}"), tmp_path / "run", quiet=True)
    assert_resumes(pictures, tmp_path / "run", whole)


@pytest.fixture
def little_memory():
    """Let the process, and those that it starts, take little more memory than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    @contextmanager
    def limited(spare):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    return limited


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_image_that_memory_does_not_hold_is_no_damaged_image_and_the_run_resumes(
    pictures, tmp_path, little_memory, workers
):
    shutil.copytree(pictures().data.root, tmp_path / "data")
    Image.new("RGB", (9000, 9000)).save(tmp_path / "data" / "train" / "dark" / "0.png")
    options = (f"data.root={tmp_path / 'data'}", "epochs=1", "data.on_error=skip")
    train(pictures(*options), tmp_path / "whole", quiet=True)
    said = "there is not enough memory for batches of 4 images"
    with little_memory(150 * 2**20), pytest.raises(UserError, match=said):
        train(pictures(*options, f"data.workers={workers}"), tmp_path / "run", quiet=True)
    train(pictures(*options), tmp_path / "run", quiet=True, go_on="auto")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_memory_that_runs_out_in_a_step_is_explained_and_the_run_resumes(
    pictures, whole, tmp_path, monkeypatch
):
    """Injected, in the allocator's own words: a limit may as well strike beside a step."""

    def add(*_):
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
        )

    with monkeypatch.context() as patch:
        patch.setattr(metrics.Metrics, "add", add)
        with pytest.raises(
            UserError, match=r"there is not enough memory .* try auto_microbatch=true"
        ):
            train(pictures(), tmp_path / "run", quiet=True)
    assert_resumes(pictures, tmp_path / "run", whole)


def test_renames_that_a_file_server_shows_late_leave_a_run_that_is_whole_or_resumes(
    pictures, whole, tmp_path, monkeypatch
):
    """Injected: on a server, when another client sees a rename is a matter of chance."""
    real, late = Path.replace, []

    def show():
        for source, target in late:
            real(source, target)
        late.clear()

    def replace(source, target):
        if Path(target).parent.name != "checkpoints":
            return real(source, target)
        show()
        # Hidden from the clean-up after it, as the server has taken the file.
        taken = source.with_name(f"{source.name}.taken")
        real(source, taken)
        late.append((taken, target))
        return Path(target)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        patch.setattr(Path, "replace", replace)
        try:
            train(pictures(), tmp_path / "run", quiet=True)
        except UserError as error:
            assert "--resume auto" in str(error)  # noqa: PT017  (either end is right)
        show()
    if read_summary(tmp_path / "run") is None:
        train(pictures(), tmp_path / "run", quiet=True, go_on="auto")
    assert_same_run(tmp_path / "run", whole)
