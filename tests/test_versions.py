"""A source tree without installed metadata: every place that writes versions has halfstep's."""

import json
from importlib import metadata
from pathlib import Path

import pytest
import safetensors
import torch

import halfstep as package
from halfstep.cli import main
from halfstep.compare.cells import directory
from halfstep.train.environment import describe
from halfstep.versions import version

QUICK = ["--device", "cpu", "--quiet", "--options", "max_steps=1", "data.resolution=8"]


@pytest.fixture
def nothing_installed(monkeypatch):
    """Hide the metadata of every package, as for modules that are only on the path."""

    def not_found(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata.Distribution, "from_name", not_found)


@pytest.mark.usefixtures("nothing_installed")
def test_a_tree_without_metadata_has_halfsteps_version_everywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("halfstep")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{package.__version__}\n"
    assert describe(torch.device("cpu"))["halfstep"] == package.__version__
    assert directory.versions() == {"halfstep": package.__version__, "torch": "unknown"}
    assert main(["train", "digits", *QUICK]) == 0
    run = Path("runs/digits/fp32-seed0")
    written = json.loads((run / "environment.json").read_text())
    assert (written["halfstep"], written["timm"]) == (package.__version__, "unknown")
    assert main(["export", str(run), "--checkpoint", "last"]) == 0
    with safetensors.safe_open(run / "export" / "last.safetensors", "pt") as file:
        assert file.metadata()["halfstep"] == package.__version__


def test_metadata_of_another_release_beside_the_tree_are_not_believed(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: f"9.9 of {name}")
    assert version("halfstep") == package.__version__
    assert version("torch") == "9.9 of torch"


def test_a_package_that_is_not_installed_has_no_version():
    assert version("no-such-package") == "unknown"
    assert version("no-such-package", "none") == "none"
