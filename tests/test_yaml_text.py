import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep.errors import UserError
from halfstep.yaml_text import dump, parse

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc1e-.", max_size=4), inner)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("2E6", 2e6), ("-1.5e+2", -150.0), ("1e", "1e"), ("e3", "e3")],
)
def test_numbers_with_exponents_are_numbers(text, value):
    assert parse(text, "test") == value
    assert type(parse(text, "test")) is type(value)


@given(st.dictionaries(st.text("abc", min_size=1), PLAIN))
def test_what_is_dumped_is_parsed_to_the_same(values):
    assert parse(dump(values), "test") == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", 'f.yaml, line 3 is not valid YAML: found duplicate key "a"'),
        ("a: 1\n  b: 2\n", "f.yaml, line 2 is not valid YAML"),
        ("a: [1", "f.yaml is not valid YAML"),
        ("a: 2\n1: 1\n", "line 2 is not valid YAML: the key '1' is not text; write it in quotes"),
        ("? [a]\n: 1\n", "is not valid YAML"),
        ("a: 2026-99-99", "f.yaml is not valid YAML: month must be in"),
        ("a: !!python/object/apply:os.system [false]", "f.yaml is not valid YAML"),
        ("[" * 5000, "f.yaml is not valid YAML"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_in_one_line(text, said):
    with pytest.raises(UserError) as caught:
        parse(text, "f.yaml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merge_keys_still_work():
    assert parse("x: &x {a: 1}\ny: {<<: *x, b: 2}\n", "test")["y"] == {"a": 1, "b": 2}
