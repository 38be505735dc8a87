"""Follows a model between training mode and evaluation mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING

from halfstep.doctor.internals import drops_values, tracks_statistics
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from halfstep.doctor.record.sites import Mark


PATTERNS = 64


@dataclass(slots=True)
class Modes:
    """The modes of a model in the loop's calls.

    Attributes:
        dependent: The modules that compute other results in evaluation mode.
        evaluated: The call of an evaluation since the last training call; None without one.
        was_training: Whether an earlier training call was in training mode.
        is_left: Whether the last training call was in evaluation mode after an evaluation.
        restored: How often a call in training mode was the first training call after an evaluation.
        left: How often it was a call in evaluation mode, although the model was trained before.
        left_after: The evaluation before the first such call.
        fresh: The evaluation since the last training call in any mode; None without one.
        evaluating: How often a training call was in evaluation mode.
        straight: How often such a call came straight after an evaluation.
        straight_after: The evaluation before the first such call.
        begins: Whether the first training call of all was such a call.
        is_switched: Whether the loop has set evaluation mode since the last training call, and no
            mode after the evaluation that followed.
        switched: How often a training call in evaluation mode came after such an evaluation.
        is_set: Whether the loop has set training mode for all these modules since the last
            evaluation; those that are not in it then, such as frozen norms, leave it on purpose.
        calls: Number of training calls.
        trained: Number of training calls by the modes of `dependent`, with the first and the last
            of them.
        tested: Number of calls without gradients by the modes of `dependent`.
        is_tested: Whether such a call was made while the model was in evaluation mode.
        streak: Number of calls without gradients in a row that have updated the statistics of
            norms, since the last training call.
        constant: Whether a call of the streak had the same number everywhere in its input.
        disturbed: Number of streaks of several such calls, between training calls.
        disturbed_by: The first call of the first such streak.
    """

    dependent: tuple[nn.Module, ...] = ()
    evaluated: Mark | None = None
    was_training: bool = False
    is_left: bool = False
    restored: int = 0
    left: int = 0
    left_after: Mark | None = None
    fresh: Mark | None = None
    evaluating: int = 0
    straight: int = 0
    straight_after: Mark | None = None
    begins: bool = False
    is_switched: bool = False
    switched: int = 0
    is_set: bool = False
    calls: int = 0
    trained: dict[tuple[bool, ...], list[int]] = field(default_factory=dict)
    tested: Counter[tuple[bool, ...]] = field(default_factory=Counter)
    is_tested: bool = False
    streak: int = 0
    constant: bool = False
    disturbed: int = 0
    disturbed_by: Mark | None = None
    _streak_began: Mark | None = None

    def examine(self, modules: Iterable[nn.Module]) -> None:
        """Find the modules that depend on the mode among the modules of the model."""
        self.dependent = tuple(
            each for each in modules if drops_values(each) or tracks_statistics(each)
        )

    def _take(self) -> None:
        """Count a training call with the present modes."""
        self.calls += 1
        modes = tuple([each.training for each in self.dependent])
        known = self.trained.get(modes)
        if known is not None:
            known[:] = [known[0] + 1, known[1], self.calls]
        elif len(self.trained) < PATTERNS:
            self.trained[modes] = [1, self.calls, self.calls]

    def in_training(self, place: int) -> int:
        """Return the number of training calls with one of `dependent` in training mode."""
        calls = ((modes, count) for modes, (count, *_) in self.trained.items())
        return sum(count for modes, count in calls if place < len(modes) and modes[place])

    def note_test(self, mark: Mark | None, *, constant: bool = False) -> None:
        """Note a call without gradients of this model itself.

        Args:
            mark: The line of the call.
            constant: Whether all numbers of the input are equal, so that it is no data.
        """
        modes = tuple([each.training for each in self.dependent])
        if modes in self.tested or len(self.tested) < PATTERNS:
            self.tested[modes] += 1
        if not self.is_training:
            # Statistics for this evaluation were computed on purpose, if they are those of data.
            self.streak = self.streak if self.constant else 0
        elif any(each.training and tracks_statistics(each) for each in self.dependent):
            self._streak_began = self._streak_began if self.streak else mark
            self.streak += 1
            self.constant |= constant

    @property
    def is_training(self) -> bool:
        """Whether a module that depends on the mode is in training mode."""
        return any(each.training for each in self.dependent)

    def note_evaluation(self, called: Modes, mark: Mark | None) -> None:
        """Note a call in evaluation mode, if it calls modules of this model, or of its copy.

        Args:
            called: The modes of the called model: this one, one that this one contains, or another.
            mark: The source line of the call.
        """
        known = set(map(id, self.dependent))
        if not known.isdisjoint(map(id, called.dependent)) or self._stands_for(called):
            self.evaluated = self.evaluated or mark
            self.fresh = self.fresh or mark
            self.is_set = False

    def _stands_for(self, called: Modes) -> bool:
        """Return whether the loop has set evaluation mode for this model, and calls a copy of it.

        A copy that is called about as often as this model is trained is a teacher.
        """
        return (
            self.is_switched
            and self.was_training
            and 2 * called.tested.total() < self.calls
            and [*map(type, called.dependent)] == [*map(type, self.dependent)]
        )

    def note_switch(self, *, sets: bool = False) -> None:
        """Note that the loop has set a mode.

        Args:
            sets: Whether it was training mode, for all of these modules.
        """
        self.is_switched = self.fresh is None and not self.is_training
        self.is_set |= sets

    def note_training(self) -> str:
        """Note a training call, and return its mode.

        Returns:
            "train"; "left" in evaluation mode if the model was evaluated since its last call in
            training mode; "eval" in evaluation mode otherwise.
        """
        if self.dependent:
            self._take()
            if (self.streak > 1 or (self.streak and self.constant)) and self.was_training:
                self.disturbed += 1
                self.disturbed_by = self.disturbed_by or self._streak_began
            self.streak, self.constant = 0, False
        if not self.dependent or self.is_training:
            self.restored += self.was_training and self.evaluated is not None and not self.is_left
            self.was_training = True
            self.evaluated = self.fresh = None
            self.is_left = self.is_switched = False
            return "train"
        self.evaluating += 1
        if self.fresh is not None:
            self.straight += 1
            self.begins |= self.calls == 1
            self.switched += self.is_switched
            self.straight_after = self.straight_after or self.fresh
            self.fresh = None
        self.is_switched = False
        if self.is_set or not (self.was_training and self.evaluated is not None):
            return "eval"
        if not self.is_left:
            self.left += 1
            self.left_after = self.left_after or self.evaluated
        self.is_left = True
        return "left"
