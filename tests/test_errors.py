"""What an error says, in one line."""

import pytest

from halfstep.errors import reason


@pytest.mark.parametrize(
    ("said", "most", "line"),
    [
        ("two\n  lines", 200, "two lines"),
        ("", 200, "ValueError"),
        ("A first sentence. A second one that is too long", 30, "A first sentence."),
        ("words without an end of a sentence", 20, "words without an ..."),
    ],
)
def test_reason_ends_with_a_sentence_or_a_word(said, most, line):
    assert reason(ValueError(said), most) == line
