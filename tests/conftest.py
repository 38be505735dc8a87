"""What several floors' tests share: real digits, small enough to train on in a second.

With -n, one process hands out tests to the others and runs none. So this file imports torch only
where it is used.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from times import Times

if TYPE_CHECKING:
    import torch

# PyTorch's own half kernels, which some tests compare with, are those of a processor without half
# units: the others are wrong for some shapes. Set before torch is imported, and inherited by what
# tests start.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
# Nets of tests are small, and a second thread costs more than it saves; it also changes the last
# bits of a sum. The variable is for processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# How long a case takes to draw says how busy the machine is, and nothing else.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background deaf to Ctrl-C, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Digits(NamedTuple):
    """Real scans, shape (n, 1, 8, 8) with values from 0 to 1, and their classes."""

    images: torch.Tensor
    labels: torch.Tensor

    def batches(self, size: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return `count` batches of `size`, starting over where the scans end."""
        import torch

        places = torch.arange(size * count).reshape(count, size) % len(self.labels)
        return [(self.images[place], self.labels[place]) for place in places]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """The first 512 scans of scikit-learn's digits."""
    import torch
    from sklearn.datasets import load_digits

    scans = load_digits()
    images = torch.tensor(scans.images[:512], dtype=torch.float32)[:, None] / 16
    return Digits(images, torch.tensor(scans.target[:512]))


LONGEST = (
    "train/loop/test_resume.py",
    "doctor/rules/test_variants.py",
    "train/distributed/test_processes.py",
    "engine/parallel/test_processes.py",
    "benchmarks/test_gpu.py",
    "cli/test_compare.py",
    "train/observers/test_diagnosis.py",
    "compare/output/report/test_browser.py",
    "doctor/rules/test_rules.py",
    "train/loop/test_saving.py",
    "train/loop/test_faults_while_running.py",
    "train/distributed/test_torchrun.py",
    "train/data/sources/test_imported.py",
    "train/observers/test_nonfinite.py",
    "compare/test_comparison.py",
    "cli/test_train.py",
    "train/loop/test_full_disk.py",
    "train/loop/test_kills.py",
    "benchmarks/test_posts.py",
    "examples/test_examples.py",
)
"""Files of tests by the time that they take, waits included."""


def pytest_addoption(parser):
    """Add the option that says where the suite's time goes."""
    parser.addoption(
        "--times",
        type=int,
        metavar="N",
        help="print the CPU seconds of each folder, and of the N longest tests",
    )


def pytest_configure(config):
    """Measure, where the option is given, and let warnings about the engine be errors."""
    longest = config.getoption("times")
    if longest is not None:
        config.pluginmanager.register(Times(longest))
    hands_out = config.getoption("dist", "no") != "no" and config.getoption("tx")
    if not hands_out:
        # In pyproject.toml, the line would import torch in the process that only hands out tests.
        category = "halfstep.engine.misuse.EngineWarning"
        config.addinivalue_line("filterwarnings", f"error::{category}")


def pytest_collection_modifyitems(items):
    """Put the longest files first, for workers take files in this order."""
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(LONGEST)}
    assert all(path.exists() for path in places), "LONGEST names a file that is not there"
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage in between: imports make a million objects and free none of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Leave modules and tests, a million objects, out of the collections that every run makes."""
    leave_out_of_collections()


def pytest_runtest_setup():
    """Do so again with the modules that a test has imported, such as torch's compiler."""
    if len(sys.modules) > MODULES[0] + 50:
        leave_out_of_collections()


MODULES = [0]
"""How many were imported when what was there was last left out."""


def leave_out_of_collections() -> None:
    """Leave all objects that there are out of later collections."""
    gc.collect()
    gc.freeze()
    MODULES[0] = len(sys.modules)


@pytest.fixture(autouse=True)
def _end_casts():
    """Apex's O1 casts for the whole process; a program that a test ran may have left it so."""
    yield
    if "halfstep.apex.amp.casts" in sys.modules:
        sys.modules["halfstep.apex.amp.casts"].end_casts()


@pytest.fixture(autouse=True, scope="module")
def _release_kernels():
    """A half model of Apex's holds the CPU's kernels for as long as it lives."""
    yield
    convert = sys.modules.get("halfstep.apex.fp16_utils.convert")
    if convert is not None and sys.modules["halfstep.kernels.products"].ON["cpu"].registered:
        gc.collect()
        convert.release_cpu_kernels()


@pytest.fixture(scope="session")
def chromium():
    """A browser, where there is one."""
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra 'browser'")
    installed = shutil.which("chromium") or shutil.which("chromium-browser")
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=installed, args=["--no-sandbox", "--disable-gpu"]
            )
        except api.Error as error:
            pytest.skip(f"no Chromium to open a page in: {str(error).splitlines()[0]}")
        yield browser
        browser.close()
