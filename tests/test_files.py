import json
import stat

import pytest

from halfstep.files import json_text, write_atomically


@pytest.mark.parametrize(
    "content", ["häl", "häl".encode(), lambda file: file.write("häl".encode())]
)
def test_text_bytes_and_writers_arrive_in_folders_that_did_not_exist(tmp_path, content):
    write_atomically(tmp_path / "a" / "b.txt", content)
    assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "häl"


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    def fail_halfway(file):
        file.write(b"half")
        raise KeyboardInterrupt

    write_atomically(tmp_path / "x", "old")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "x", fail_halfway)
    assert (tmp_path / "x").read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_file_has_the_mode_of_ordinary_files(tmp_path):
    (tmp_path / "ordinary").touch()
    write_atomically(tmp_path / "atomic", "")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "atomic")]
    assert modes[0] == modes[1]


def test_json_is_strict_where_numbers_are_not_finite():
    text = json_text({"a": [float("nan"), float("inf")], "b": (float("-inf"), 1.5)})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": ["nan", "inf"], "b": ["-inf", 1.5]}
