import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from halfstep.train.data.sources import spelling


@given(st.text())
def test_the_key_does_not_depend_on_case_or_unicode_form(name):
    forms = {unicodedata.normalize(form, name) for form in ("NFC", "NFD")}
    assert {spelling.key(form) for form in forms} == {spelling.key(name)}
    assert spelling.key(spelling.key(name)) == spelling.key(name)


def test_groups_have_two_different_names_at_least():
    assert spelling.groups(["b", "A", "a", "c", "B", "c"]) == [["b", "B"], ["A", "a"]]


def test_names_that_look_alike_are_shown_as_escapes():
    assert spelling.told_apart("Cat", "cat") == ["'Cat'", "'cat'"]
    assert spelling.told_apart("é", "e\u0301") == [r"'\xe9'", r"'e\u0301'"]


def test_a_hint_prefers_the_same_name_in_another_spelling():
    assert "'A' and 'a' differ only in case" in spelling.hint("A", ["B", "a"])
    assert spelling.hint("oka", ["oak", "elm"]) == "; did you mean 'oak'?"
    assert spelling.hint("fir", ["oak"]) == ""
