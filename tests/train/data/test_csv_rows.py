from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.errors import UserError
from halfstep.train.data.csv_rows import Row, read


def written(tmp_path, text):
    file = tmp_path / "train.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_rows_are_numbered_as_an_editor_numbers_lines(tmp_path):
    text = 'label , image,note\noak,a.jpg,\n\n elm ,"b,1.jpg",x\n,,\n'
    assert read(written(tmp_path, text)) == [
        Row(2, "a.jpg", "oak", ""),
        Row(4, "b,1.jpg", "elm", ""),
    ]


def test_byte_order_mark_and_split_are_understood(tmp_path):
    text = "\ufeffimage,label,split\r\na.jpg,oak,train\r\nb.jpg,elm,val\r\n"
    assert [row.split for row in read(written(tmp_path, text))] == ["train", "val"]


def test_labels_may_be_left_out_where_none_are_needed(tmp_path):
    file = written(tmp_path, "image\na.jpg\n")
    assert read(file, labelled=False) == [Row(2, "a.jpg", "", "")]
    with pytest.raises(UserError, match="without 'label'"):
        read(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "row 1: the header is '', without 'image'"),
        ("images,label\na,b\n", "without 'image'; allowed: .*; did you mean 'images'"),
        ("image,label\na.jpg\n", "row 2: 'a.jpg' has no label; write it, or leave the row out"),
        ("image,label\na.jpg,oak\n,elm\n", "row 3: ',elm' has no image"),
        ("image,label,split\na,b,valid\n", "row 2: split is 'valid'; allowed: train, val; did"),
        ("image,label,split\na,b\n", "row 2: split is ''; allowed: train, val"),
        ('image,label\na,"b\n', "cannot be read as CSV"),
        ("image,label\na.jpg,oak, red\n", "row 2: .* has 3 values and the header 2; put a value"),
        ("image,label,label\na.jpg,oak,elm\n", "row 1: the header has 'label' twice"),
        (b"image,label\n\xff\xfe,b\n", "cannot be read as CSV in UTF-8"),
        ("image,label\na\0b,c\n", "row 2|cannot be read as CSV"),
    ],
)
def test_what_is_wrong_is_said_with_its_row(tmp_path, text, said):
    with pytest.raises(UserError, match=said) as error:
        read(written(tmp_path, text))
    assert "train.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_is_an_error_of_the_user(tmp_path):
    with pytest.raises(UserError, match="cannot be read as CSV"):
        read(tmp_path / "gone.csv")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60).map(lambda tail: b"image,label\na.jpg,oak\n" + tail))
def test_no_file_ends_in_anything_but_rows_or_one_line(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(text)
    with suppress(UserError):  # anything else fails
        assert read(file)[0] == Row(2, "a.jpg", "oak", "")
