import pytest

from halfstep.errors import UserError
from halfstep.train.data.sources.faults import DataWarning, Faults


def test_fatal_names_the_image_and_the_way_out():
    with pytest.raises(UserError, match=r"a.jpg is bad; or write data.on_error=skip"):
        Faults("fatal").report(["a.jpg is bad", "b.jpg is bad"])


def test_skipped_images_are_named_and_counted_once():
    faults = Faults("skip")
    with pytest.warns(DataWarning) as said:
        [faults.report(lines) for lines in (["a.jpg is bad", "b.jpg is bad"], ["a.jpg is bad"])]
    assert [str(each.message) for each in said] == [
        "left out: a.jpg is bad",
        "left out: b.jpg is bad",
    ]
    assert len(faults.seen) == 2
