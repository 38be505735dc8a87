import pytest

from halfstep.show import units


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0.0s"), (99.94, "99.9s"), (99.96, "1m40s"), (3599.6, "1h00m"), (7500, "2h05m")],
)
def test_durations_are_short(seconds, written):
    assert units.duration(seconds) == written


@pytest.mark.parametrize(
    ("share", "written"), [(0.0123, "+1.23"), (-0.5, "-50.00"), (1e-9, "0.00"), (-1e-9, "0.00")]
)
def test_differences_have_a_sign_unless_they_are_none(share, written):
    assert units.points(share) == written


@pytest.mark.parametrize(("seconds", "written"), [(0.01234, "12.3"), (0.5, "500"), (2.5, "2500")])
def test_step_times_have_three_digits(seconds, written):
    assert units.milliseconds(seconds) == written


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "0"),
        (0.826, "0.83"),
        (0.996, "1.0"),
        (5.36, "5.4"),
        (99.6, "100"),
        (541_234, "540,000"),
    ],
)
def test_rough_figures_have_two_digits_and_no_exponent(number, written):
    assert units.two_digits(number) == written


@pytest.mark.parametrize(
    ("share", "written"), [(0.0, "0.0%"), (0.0002, "<0.1%"), (0.0006, "0.1%"), (0.123, "12.3%")]
)
def test_a_small_share_is_not_written_as_zero(share, written):
    assert units.small_share(share) == written
