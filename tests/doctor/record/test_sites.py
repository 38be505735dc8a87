"""Lines of a program are told from those of packages that are installed into any folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import is_of_user

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_package_in_another_folder_is_none_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `pip install --target`, possibly into the folder of the program itself."""
    record = tmp_path / "net-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("net/__init__.py,sha256=0,1\nsingle.py,sha256=0,1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("net/train/loop.py", "single.py"):
        assert not is_of_user(str(tmp_path / name))
    for name in ("train.py", "network/loop.py"):
        assert is_of_user(str(tmp_path / name))
