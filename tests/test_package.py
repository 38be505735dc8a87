"""The wheel carries what an installed halfstep needs, and runs from it."""

import os
import re
import subprocess
import sys
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
        found = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
        assert found[1] == halfstep.__version__, file


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Build the wheel and unpack it where an installer would."""
    built = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", built]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(built / "site")
    return built / "site"


def test_the_wheel_carries_configs_and_type_information(installed):
    sources = ROOT / "src" / "halfstep"
    shipped = {path.relative_to(sources) for path in sources.rglob("*.yaml")}
    shipped |= {Path("py.typed"), Path("__main__.py")}
    assert all((installed / "halfstep" / path).is_file() for path in shipped)


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
