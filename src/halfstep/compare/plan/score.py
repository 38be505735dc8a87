"""The figure by which the rows of a comparison are judged, and how it is written.

It is the accuracy of image classification in percent, or any metric of a program's own objects.
Differences are gains: a positive one is better, also where less of the figure is better.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.show import units


@dataclass(frozen=True, slots=True)
class Score:
    """The figure by which rows are judged.

    Attributes:
        name: Its name among the metrics of a validation.
        less_is_better: Whether a smaller value is better.
    """

    name: str = "accuracy"
    less_is_better: bool = False

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a share of samples, so that differences are in points."""
        return self.name == "accuracy" and not self.less_is_better

    @property
    def best(self) -> str:
        """The key of its best value in a summary."""
        return "best_accuracy" if self.is_accuracy else f"best_metrics.{self.name}"

    @property
    def final(self) -> str:
        """The key of its last value in a summary."""
        return "final_accuracy" if self.is_accuracy else f"final_metrics.{self.name}"

    @property
    def sign(self) -> float:
        """The factor that makes a greater number the better one."""
        return -1.0 if self.less_is_better else 1.0

    @property
    def scale(self) -> float:
        """The factor from a value to the number that readers see."""
        return 100.0 if self.is_accuracy else 1.0

    @property
    def unit(self) -> str:
        """The unit of a difference: "points", or the name of the metric."""
        return "points" if self.is_accuracy else self.name

    @property
    def title(self) -> str:
        """The name of a value with its unit, for axes."""
        return "accuracy, %" if self.is_accuracy else self.name

    @property
    def difference_title(self) -> str:
        """The name of a difference from the baseline, for captions."""
        if self.is_accuracy:
            return "Difference in best accuracy from the baseline, in points"
        return f"How much better the best {self.name} is than that of the baseline"

    def value(self, value: float) -> str:
        """Write a value, or a distance between two."""
        return units.percent(value) if self.is_accuracy else units.plain(value)

    def difference(self, gain: float) -> str:
        """Write a gain, with plus or minus."""
        if self.is_accuracy:
            return units.points(gain)
        text = f"{gain:+.4g}"
        return "0" if text in {"+0", "-0"} else text

    def gain(self, gain: float) -> str:
        """Write a gain with its unit, in words."""
        if self.is_accuracy:
            return f"{units.points(gain)} points"
        return f"{abs(gain):.4g} {'worse' if gain < 0 else 'better'} in {self.name}"

    def margin(self, tolerated: float) -> str:
        """Write a tolerated loss."""
        return units.margin(tolerated) if self.is_accuracy else f"{tolerated:g} in {self.name}"


ACCURACY = Score()
