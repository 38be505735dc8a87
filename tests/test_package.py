"""The wheel carries what an installed halfstep needs, and runs from it."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import halfstep

ROOT = Path(__file__).parents[1]


def test_the_version_is_the_same_everywhere():
    places = {
        "pyproject.toml": r'^version = "(.*)"$',
        "CITATION.cff": r"^version: (.*)$",
        "CHANGELOG.md": r"^## (\d\S*) - ",
    }
    for file, pattern in places.items():
        match = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
        assert match[1] == halfstep.__version__, file


def test_the_release_has_one_date():
    dates = {
        "CITATION.cff": r"^date-released: (.*)$",
        "CHANGELOG.md": r"^## \d\S* - (.*)$",
    }
    first, second = (
        re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)[1]
        for file, pattern in dates.items()
    )
    assert first == second


def build(tree: Path, target: str, where: Path) -> Path:
    """Build a distribution of a source tree, and return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", where]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (built,) = where.iterdir()
    return built


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """Build the source distribution, and unpack it."""
    archive = build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))
    with tarfile.open(archive) as files:
        files.extractall(archive.parent, filter="data")
    return archive.parent / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def installed(unpacked, tmp_path_factory) -> Path:
    """Build the wheel from the source distribution, and unpack it where an installer would."""
    wheel = build(unpacked, "wheel", tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "site")
    return wheel.parent / "site"


def files(folder: Path) -> set[str]:
    """Return the paths of all files in a folder but the compiled ones of Python."""
    paths = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in paths if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_package_and_a_licence(installed):
    information = f"halfstep-{halfstep.__version__}.dist-info"
    assert {path.name for path in installed.iterdir()} == {"halfstep", information}
    assert files(installed / "halfstep") == files(ROOT / "src" / "halfstep")
    assert (installed / information / "licenses" / "LICENSE").is_file()


def test_the_source_distribution_has_the_package_alone(unpacked):
    tops = {path.name for path in unpacked.iterdir()} - {".gitignore", "PKG-INFO"}
    assert tops == {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "src"}


def test_the_installed_command_trains(installed, tmp_path):
    command = [sys.executable, "-m", "halfstep", "train", "digits", "--out", tmp_path / "run"]
    options = ["--options", "epochs=1", "data.resolution=8", "batch_size=256"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()
