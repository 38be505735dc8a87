from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.errors import UserError
from halfstep.train.data.sources.csv_rows import CsvRow, columns_of, read
from halfstep.train.data.sources.faults import Unusable


def written(tmp_path, text):
    file = tmp_path / "train.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_rows_are_numbered_as_an_editor_numbers_lines(tmp_path):
    text = 'label , image,note\noak,a.jpg,\n\n elm ,"b,1.jpg",x\n,,\n'
    assert read(written(tmp_path, text)) == [
        CsvRow(2, "a.jpg", "oak", ""),
        CsvRow(4, "b,1.jpg", "elm", ""),
    ]


def test_byte_order_mark_and_split_are_understood(tmp_path):
    text = "\ufeffimage,label,split\r\na.jpg,oak,train\r\nb.jpg,elm,val\r\n"
    assert [row.split for row in read(written(tmp_path, text))] == ["train", "val"]


def test_labels_may_be_left_out_where_none_are_needed(tmp_path):
    file = written(tmp_path, "image\na.jpg\n")
    assert read(file, labelled=False) == [CsvRow(2, "a.jpg", "", "")]
    with pytest.raises(UserError, match="without 'label'"):
        read(file)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_the_header_decides_what_separates_values(tmp_path, separator):
    text = "image,label\na 1.jpg,oak\n\n".replace(",", separator) + f'"b;1.jpg"{separator}x,y\n'
    assert read(written(tmp_path, text)) == [
        CsvRow(2, "a 1.jpg", "oak", ""),
        CsvRow(4, "b;1.jpg", "x,y", ""),
    ]


def test_letter_case_of_the_header_does_not_count_and_an_exact_name_comes_first(tmp_path):
    file = written(tmp_path, "LABEL,Image,image,Split\noak,x.jpg,a.jpg,val\n")
    assert read(file) == [CsvRow(2, "a.jpg", "oak", "val")]


def test_columns_are_found_by_the_names_that_are_given(tmp_path):
    file = written(tmp_path, "label;File Name;part;species\n7;a.jpg;val;oak\n")
    columns = columns_of("image=file name, label=species,split=part")
    assert read(file, columns) == [CsvRow(2, "a.jpg", "oak", "val")]
    unlabelled = columns_of("image=file name,label=none,split=none")
    assert read(file, unlabelled, labelled=False) == [CsvRow(2, "a.jpg", "", "")]


@pytest.mark.parametrize("text", ["", "image", "image=", "=x", "picture=x", "image=a,image=b"])
def test_columns_that_are_none_are_refused_in_one_line(text):
    with pytest.raises(
        UserError, match=r"--columns is .*; allowed: image, label, split, each once"
    ):
        columns_of(text)


def test_all_rows_that_are_wrong_are_told(tmp_path):
    file = written(tmp_path, "image,label\n,oak\na.jpg,oak\nb.jpg,\nc.jpg,a,b\n")
    with pytest.raises(Unusable, match=r"row 2: .* \(and 2 more; halfstep data check lists"):
        read(file)
    with pytest.raises(Unusable) as error:
        read(file)
    assert ["row 2" in str(error.value.reasons[0]), len(error.value.reasons)] == [True, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "row 1: the header is '', without 'image'"),
        ("images,label\na,b\n", "without 'image'; allowed: .*; did you mean 'images'"),
        ("image,label\na.jpg\n", "row 2: 'a.jpg' has no label; write it, or leave the row out"),
        ("image,label\na.jpg,oak\n,elm\n", "row 3: ',elm' has no image"),
        ("image,label\na.jpg,oak\nb.jpg, NaN\n", "row 3: .* has 'NaN' for a missing label; wri"),
        ("image,label\nnan,oak\n", "row 2: .* has 'nan' for a missing image; write it, or leave"),
        ('image;label\na.jpg;oak\nb.jpg;" "\n', "row 3: 'b.jpg,' has no label"),
        ("image,label,split\na,b,valid\n", "row 2: split is 'valid'; allowed: train, val; did"),
        ("image,label,split\na,b\n", "row 2: split is ''; allowed: train, val"),
        ('image,label\na,b\nc,"d\ne,f\n', "row 3: a double quote is opened and never closed"),
        ('image,label\na,"b\nc,d\ne,"f"\n', "row 2: something follows the closing double quote"),
        ('image,label\na,"b\nc,d"\ne,f\n', r"row 3: the label 'b\\nc,d' has a line break; close"),
        ("image,label\na,b\nc," + "d" * 140_000, "row 3: a value is longer than 131,072 char"),
        ('image,label\na,"' + "b,c\n" * 40_000, "row 2: a value is longer .* close the double"),
        ("image,label\na.jpg,oak, red\n", "row 2: .* has 3 values and the header 2; put a value"),
        ("image,label,label\na.jpg,oak,elm\n", "row 1: the header has 'label' twice"),
        (b"image,label\na,b\n\xe9,b\n", "row 3: .* cannot be read as CSV in UTF-8; save the file"),
        ("image,label\na,b\n".encode("utf-16"), "is in UTF-16 and not in UTF-8; save it"),
        ("image,label\na\0b,c\n", r"row 2: the path 'a\\x00b' has a null byte"),
        ("filename,label\na,b\n", "without 'image'; .* data.columns.image=filename in a config"),
        ("image,species\na,b\n", "without 'label'; .* and --columns label=species beside a CSV"),
        ("image|label\na|b\n", r"is 'image\|label', without .* separated by commas"),
        ("Image,IMAGE,label\na,b,c\n", "row 1: the header has 'image' twice"),
        ("image;label\na,b\n", "row 2: 'a,b' has no label"),
    ],
)
def test_what_is_wrong_is_said_with_its_row(tmp_path, text, said):
    with pytest.raises(UserError, match=said) as error:
        read(written(tmp_path, text))
    assert "train.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_every_row_with_a_missing_label_is_told(tmp_path):
    file = written(tmp_path, "image,label\na.jpg,oak\nb.jpg,nan\nc.jpg,\nd.jpg,none\ne.jpg,<NA>\n")
    with pytest.raises(Unusable) as error:
        read(file)
    rows = [str(reason).partition(":")[0] for reason in error.value.reasons]
    assert rows == [f"{file}, row {number}" for number in (3, 4, 6)]
    assert len(read(file, labelled=False)) == 5


def test_missing_file_is_an_error_of_the_user(tmp_path):
    with pytest.raises(UserError, match="cannot be read as CSV"):
        read(tmp_path / "gone.csv")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60).map(lambda tail: b"image,label\na.jpg,oak\n" + tail))
def test_no_file_ends_in_anything_but_rows_or_one_line(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(text)
    with suppress(UserError):  # anything else fails
        assert read(file)[0] == CsvRow(2, "a.jpg", "oak", "")
