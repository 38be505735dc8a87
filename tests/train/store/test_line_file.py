"""A file of whole lines."""

import errno

import pytest

from halfstep.train.store.line_file import LineFile


def test_an_unfinished_last_line_is_removed_and_whole_ones_are_kept(tmp_path):
    path = tmp_path / "lines"
    for before, kept in ((b"", b""), (b"un", b""), (b"one\nun", b"one\n"), (b"one\n", b"one\n")):
        path.write_bytes(before)
        lines = LineFile(path, goes_on=True)
        lines.add("two")
        lines.write_out()
        lines.close()
        assert path.read_bytes() == kept + b"two\n"
    LineFile(path, goes_on=False).close()
    assert path.read_bytes() == b""


def test_a_line_that_could_not_be_written_comes_whole_before_the_next(tmp_path, monkeypatch):
    lines = LineFile(tmp_path / "lines", goes_on=True)
    real = lines._file

    class Full:
        """Takes three bytes, and then no more."""

        def write(self, data):
            if real.tell() >= 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real.write(data[:3])

    monkeypatch.setattr(lines, "_file", Full())
    lines.add("first")
    with pytest.raises(OSError, match="No space"):
        lines.write_out()
    monkeypatch.setattr(lines, "_file", real)
    lines.add("second")
    lines.write_out()
    lines.close()
    assert (tmp_path / "lines").read_text() == "first\nsecond\n"
