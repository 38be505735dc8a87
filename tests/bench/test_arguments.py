import pytest

from halfstep.bench.arguments import parse_counts
from halfstep.errors import UserError


def test_the_smallest_comes_first():
    assert parse_counts("--workers", "4, 0,2", least=0) == (0, 2, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "whole numbers with commas"),
        ("two", "whole numbers with commas"),
        ("1,-2", "whole numbers with commas"),
        ("0,1", "numbers from 1 on"),
        ("2,1,2", "names 2 twice"),
    ],
)
def test_what_is_no_list_of_counts_is_refused(text, said):
    with pytest.raises(UserError, match=said):
        parse_counts("--threads", text, least=1)
