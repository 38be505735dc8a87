import warnings

import pytest

from data.small import encoded, equal, labels_of, load, section
from halfstep.errors import UserError
from halfstep.train.data.sources.faults import DataWarning, Unusable

ROWS = [("a/1.png", "oak"), ("a/2.png", "elm"), ("a/3.png", "oak"), ("a/4.png", "ash")]
VAL = [("b/1.png", "elm"), ("b/2.png", "ash")]


def open_csv(root, train="train.csv", val="val.csv", **fields):
    both = {"train": {"ann_file": train}, "val": {"ann_file": val}}
    return load(**{"name": "csv", "root": str(root), **both, **fields})


def warned(call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in said if each.category is DataWarning]


def test_images_are_those_of_the_rows_and_classes_the_sorted_labels(tmp_path, write_csv):
    write_csv("train.csv", ROWS)
    write_csv("val.csv", VAL)
    data = open_csv(tmp_path)
    assert data.classes == ("ash", "elm", "oak")
    assert data.image_shape == (3, 8, 8)
    assert sorted(labels_of(data.train.epoch(1))) == [0, 1, 2, 2]
    assert labels_of(data.val.epoch()) == [1, 0]
    assert warned(lambda: open_csv(tmp_path)) == []


def test_labels_that_are_numbers_are_in_their_order(tmp_path, write_csv):
    write_csv("train.csv", [(f"{number}.png", str(number)) for number in (10, 9, 2)])
    write_csv("val.csv", [("v.png", "2")])
    assert open_csv(tmp_path).classes == ("2", "9", "10")


@pytest.mark.parametrize(("train", "val"), [("all.csv", None), (None, "all.csv"), ("all.csv",) * 2])
def test_one_file_serves_both_splits_by_its_column(tmp_path, write_csv, train, val):
    rows = [(*row, "train") for row in ROWS] + [(*row, "val") for row in VAL]
    write_csv("all.csv", rows, header=("image", "label", "split"))
    data = open_csv(tmp_path, train, val)
    assert (data.train.images, data.val.images) == (4, 2)


def test_limit_is_of_each_split(tmp_path, write_csv):
    write_csv("train.csv", ROWS)
    write_csv("val.csv", VAL)
    limited = {
        key: {"ann_file": f"{key}.csv", "limit": limit} for key, limit in (("train", 3), ("val", 1))
    }
    data = load(name="csv", root=str(tmp_path), **limited)
    assert (data.train.images, data.val.images, len(data.classes)) == (3, 1, 3)


def test_one_image_with_two_labels_is_warned_of_by_path_and_by_content(tmp_path, write_csv):
    write_csv("train.csv", [*ROWS, ("a/1.png", "elm"), ("copy.png", "ash")])
    write_csv("val.csv", [*VAL, ("other.png", "oak")])
    (tmp_path / "copy.png").write_bytes((tmp_path / "a/2.png").read_bytes())
    (tmp_path / "other.png").write_bytes((tmp_path / "a/4.png").read_bytes())
    said = warned(lambda: open_csv(tmp_path))
    assert len(said) == 3
    train, val = tmp_path / "train.csv", tmp_path / "val.csv"
    assert said[0].startswith(f"{train} row 2 (a/1.png: 'oak'), row 6 (a/1.png: 'elm'): one image")
    assert said[1].startswith(f"{train} row 3 (a/2.png: 'elm'), row 7 (copy.png: 'ash')")
    assert said[2].startswith(f"{train} row 5 (a/4.png: 'ash'), {val} row 4 (other.png: 'oak')")
    assert all("several labels" in line for line in said)


def test_images_of_both_splits_and_repeated_rows_are_warned_of(tmp_path, write_csv):
    write_csv("train.csv", [*ROWS, ROWS[0]])
    write_csv("val.csv", [*VAL, ("copy.png", "elm")])
    (tmp_path / "copy.png").write_bytes((tmp_path / "a/2.png").read_bytes())
    shared, repeated = warned(lambda: open_csv(tmp_path))
    assert "row 3" in shared
    assert "val.csv row 4" in shared
    assert "flatters the validation" in shared
    assert "row 2 (a/1.png: 'oak'), row 6 (a/1.png: 'oak'): one image listed more than" in repeated


def test_long_lists_are_cut_and_counted(tmp_path, write_csv):
    write_csv("train.csv", [(f"{n}.png", label) for n in range(23) for label in ("oak", "elm")])
    write_csv("val.csv", [("v.png", "oak")])
    said = warned(lambda: open_csv(tmp_path))
    assert len(said) == 21
    assert said[-1].startswith("3 more of such")


def test_missing_images_are_named_by_row(tmp_path, write_csv):
    write_csv("train.csv", ROWS, missing=("a/2.png", "a/4.png"))
    write_csv("val.csv", VAL)
    with pytest.raises(
        UserError, match=r"2 of 4 images do not exist under .*: row 3 \(a/2.png\), row 5"
    ):
        open_csv(tmp_path)


def test_labels_of_validation_alone_are_named_by_row(tmp_path, write_csv):
    write_csv("train.csv", ROWS)
    write_csv("val.csv", [*VAL, ("b/3.png", "oka"), ("b/4.png", "fir")])
    with pytest.raises(UserError, match=r"row 4 \('oka'\), row 5 \('fir'\).*did you mean 'oak'"):
        open_csv(tmp_path)


def test_a_label_of_validation_in_another_spelling_is_named_beside_that_of_training(
    tmp_path, write_csv
):
    write_csv("train.csv", [*ROWS, ("a/5.png", "caf\u00e9")])
    write_csv("val.csv", [*VAL, ("b/3.png", "cafe\u0301")])
    with pytest.raises(
        UserError, match=r"; 'cafe\\u0301' and 'caf\\xe9' differ only in case or Un"
    ):
        open_csv(tmp_path)
    write_csv("val.csv", [*VAL, ("b/3.png", "ELM")])
    with pytest.raises(UserError, match="; 'ELM' and 'elm' differ only in case or Unicode form"):
        open_csv(tmp_path)


def test_images_with_another_spelling_on_disk_are_read_and_named_once(tmp_path, write_csv):
    write_csv("train.csv", ROWS)
    write_csv("val.csv", VAL)
    expected = list(open_csv(tmp_path).val.epoch())
    (tmp_path / "b/1.png").rename(tmp_path / "b/1.PNG")
    if (tmp_path / "b/1.png").exists():
        pytest.skip("this file system does not tell the spellings apart")
    with pytest.warns(DataWarning) as said:
        data = open_csv(tmp_path)
    (line,) = (str(each.message) for each in said)
    assert line.startswith(f"{tmp_path}/val.csv: 1 image has another case or Unicode form on disk")
    assert line.endswith(": row 2 ('b/1.png', on disk 'b/1.PNG'); write the names alike")
    assert equal(list(data.val.epoch()), expected)


def test_what_else_cannot_be_trained_on_is_refused(tmp_path, write_csv):
    write_csv("train.csv", ROWS)
    write_csv("empty.csv", [])
    write_csv("one.csv", ROWS[:1])
    write_csv("half.csv", [(*ROWS[0], "train")], header=("image", "label", "split"))
    cases = {
        (None, None): "both null",
        ("gone.csv", "train.csv"): "data.train.ann_file is 'gone.csv', but there is no file",
        ("train.csv", "empty.csv"): "empty.csv lists no image",
        ("one.csv", "train.csv"): "every row has the label 'oak'",
        ("half.csv", None): "no row whose split is 'val'",
    }
    for (train, val), said in cases.items():
        with pytest.raises(UserError, match=said):
            open_csv(tmp_path, train, val)
    with pytest.raises(UserError, match=r"data.root is 'nowhere', which does not exist"):
        open_csv("nowhere")


def test_one_file_without_the_column_serves_one_split_only(tmp_path, write_csv):
    write_csv("train.csv", ROWS)
    with pytest.raises(UserError, match="has no column split"):
        open_csv(tmp_path, "train.csv", None)


def test_unreadable_image_is_named_with_file_and_row(tmp_path, write_csv):
    write_csv("train.csv", ROWS)
    write_csv("val.csv", VAL)
    (tmp_path / "b/2.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"val.csv, row 3 \(.*b/2.png\)"):
        list(open_csv(tmp_path).val.epoch())


def test_defaults_are_what_the_fields_say():
    config = section(name="csv")
    assert (config.root, config.train.ann_file, config.val.ann_file) == (".", "train.csv", None)
    assert encoded(1) != encoded(2)


def test_all_that_is_wrong_with_lists_is_counted_and_numbers_are_compared_by_value(
    tmp_path, write_csv
):
    write_csv("train.csv", [("1.png", "0"), ("2.png", "1"), ("3.png", "0")], missing=("2.png",))
    write_csv("val.csv", [("4.png", "0.0")])
    with pytest.raises(Unusable, match=r"2.png.* \(and 1 more; halfstep data check") as error:
        open_csv(tmp_path)
    assert str(error.value.reasons[1]).endswith(
        "training; '0.0' and '0' are the same number: write both alike"
    )


def test_a_name_that_is_too_long_for_a_file_is_missing(tmp_path, write_csv):
    write_csv("val.csv", VAL)
    (tmp_path / "train.csv").write_text("image,label\n" + "x" * 300 + ",oak\nb/1.png,elm\n")
    with pytest.raises(UserError, match=r"1 of 2 images do not exist under .*row 2 \(xxx"):
        open_csv(tmp_path)


def test_columns_have_the_names_that_the_config_gives(tmp_path, write_csv):
    header = ("filename", "species")
    write_csv("train.csv", ROWS, header=header)
    write_csv("val.csv", VAL, header=header)
    with pytest.raises(UserError, match=r"data.columns.image=filename in a config"):
        open_csv(tmp_path)
    data = open_csv(tmp_path, columns={"image": "Filename", "label": "species"})
    assert data.classes == ("ash", "elm", "oak")
    named = {"image": "filename", "label": "species", "split": "fold"}
    with pytest.raises(UserError, match=r"data.columns.split is 'fold', a column that .*train.csv"):
        open_csv(tmp_path, columns=named)
