import unicodedata

import pytest

from data.small import load
from halfstep.errors import UserError
from halfstep.train.data.sources.class_names import examine, is_missing

NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    "value", ["", " ", "\t", "nan", "NaN", "NAN", "-nan", " nan ", "<NA>", "#N/A"]
)
def test_texts_for_missing_values_are_missing(value):
    assert is_missing(value)


@pytest.mark.parametrize("value", ["naan", "none", "NA", "null", "0", "-", "n", "banana"])
def test_what_may_be_a_class_is_not_missing(value):
    assert not is_missing(value)


def test_float_nan_is_missing_as_python_writes_it():
    assert is_missing(str(float("nan")))


@pytest.mark.parametrize("name", ["nan", "NaN", "", "#N/A"])
def test_a_class_that_stands_for_a_missing_label_is_refused(name):
    with pytest.raises(UserError, match=f"a class has the name '{name}', which stands for a miss"):
        examine(("cat", name, "dog"))


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("Cat", "cat", "dog"), "'Cat' and 'cat'; merge them"),
        (("CAT", "Cat", "cat"), "'CAT' and 'Cat' and 'cat';"),
        ((NFC, NFD), r"'caf\xe9' and 'cafe\u0301';"),
        ((NFC.upper(), NFD), r"'CAF\xc9' and 'cafe\u0301'"),
        (("a", "A", "b", "B"), "'a' and 'A', 'b' and 'B';"),
    ],
)
def test_classes_that_are_easily_confused_are_named_together(classes, said):
    (notice,) = examine(classes)
    assert notice.kind == "spelling"
    assert said in notice.text


def test_other_classes_are_no_matter():
    assert examine(("cat", "cats", "dog", "Maße", "Masse", "0", "00")) == ()


def test_classes_of_every_source_are_examined(folders):
    for split in ("train", "val"):
        (folders / split / "cat").rename(folders / split / "Dog")
    fields = {"name": "folder", "root": str(folders)}
    with pytest.warns(UserWarning, match="case or Unicode form: 'Dog' and 'dog'; merge"):
        assert load(**fields).classes == ("Dog", "dog")
    (folders / "train" / "Dog").rename(folders / "train" / "nan")
    (folders / "val" / "Dog").rename(folders / "val" / "nan")
    with pytest.raises(UserError, match="a class has the name 'nan'"):
        load(**fields)
