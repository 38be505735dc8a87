"""Finds the exceptions under which a recipe is safe for a model, or why no exceptions suffice.

First, sites whose own rounding does too much damage become exceptions. Then whole steps are
rehearsed, and exceptions are added and widened, from an operator to its module to the parent
module, until nothing goes wrong. Finally, every exception that is not needed is removed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.advise.choose.borders import (
    about_to_overflow,
    around,
    counted_up,
    covered,
    half_sites,
    is_masked,
    is_operator_of,
    leaving,
    overflowed_before,
)
from halfstep.advise.choose.clock import Clock
from halfstep.advise.choose.drift import followed
from halfstep.advise.choose.rehearse import (
    CLOSE,
    LIMIT,
    MOST_LOST,
    Rehearsal,
    is_doubtful,
    over_each_step,
    over_two_steps,
    rehearse,
)
from halfstep.advise.choose.scale import first_scale, overflows
from halfstep.advise.choose.single_calls import (
    Damage,
    SiteFailsError,
    damages,
    formats_under,
)
from halfstep.advise.choose.trial import Trial
from halfstep.advise.eps import why_unsafe
from halfstep.advise.random_numbers import drawn_from
from halfstep.engine import Engine
from halfstep.errors import reason
from halfstep.formats import FORMATS
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfstep.advise.choose.record import Record
    from halfstep.advise.choose.sites import Site
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe

ROUNDS = 8
FORWARD, WHAT_IF = 1 / 3, 2
"""Passes that it takes to find the formats of all calls, and to repeat each call in fp32 and in
half precision."""
LAST = 1
"""Passes reserved to check the initial loss scale."""
LITTLE_HEADROOM = 2
"""Bits of headroom below which a result may soon overflow."""


def find_exceptions(
    subject: Subject,
    recorded: Record,
    base: str,
    *,
    seed: int = 0,
    most: float = math.inf,
    clock: Clock | None = None,
) -> Trial:
    """Find the exceptions that a model needs under a recipe.

    Args:
        subject: The subject; it is not modified.
        recorded: The recorded steps in fp32.
        base: The name of the recipe.
        seed: The seed of the recipe's random numbers.
        most: Maximum forward and backward passes of the search; exceptions stay if no passes are
            left to check whether they are needed.
        clock: Counts the passes, and may end the search.

    Raises:
        BudgetSpentError: If the clock ends the search.
    """
    trial = Trial(base, find_recipe(base))
    search = _Search(subject, recorded, trial, seed, most, clock or Clock(1))
    search.look_at_sites()
    if not trial.rejected:
        search.widen()
        search.leave_room()
    if trial.rejected:
        trial.exceptions.clear()
    else:
        search.narrow()
    for pattern in trial.exceptions:
        inside = [line for site, line in recorded.lines.items() if covered(site, [pattern])]
        trial.lines[pattern] = inside[0] if inside else ""
    return trial


class _Search:
    """The search for the exceptions of one recipe."""

    def __init__(
        self,
        subject: Subject,
        recorded: Record,
        trial: Trial,
        seed: int,
        most: float,
        clock: Clock,
    ) -> None:
        self._subject = subject
        self._recorded = recorded
        self._trial = trial
        self._seed = seed
        self._most = most - LAST
        self._clock = clock
        self._base = trial.recipe
        self._scale = None if trial.recipe.scaling is None else trial.recipe.scaling.init
        self._formats: dict[Site, str] = {}
        self._counted = counted_up(recorded)
        self._once = [self._lower_scale, self._except_backward, self._lower_scale]

    def look_at_sites(self) -> None:
        """Add an exception for every site that alone does too much damage."""
        trial = self._trial
        for _ in range(ROUNDS):
            try:
                self._look_under(trial.exceptions)
            except SiteFailsError as error:
                if not self._covered(error.site) and self._can_take(FORWARD + WHAT_IF + 1):
                    trial.exceptions[error.site.pattern] = str(error)
                    continue
                trial.rejected = str(error)
            except (RuntimeError, TypeError, ValueError) as error:  # the engine refuses the model
                trial.rejected = reason(error, 400)
            break
        if trial.rejected:
            return
        for site, damage in trial.damages.items():
            why = self._forward_reason(site, damage)
            if not why and self._scale is None:
                why = self._backward_reason(damage)
            if why:
                trial.exceptions[site.pattern] = why

    def widen(self) -> None:
        """Rehearse whole steps, and add exceptions until nothing goes wrong."""
        trial = self._trial
        for _ in range(ROUNDS):
            try:
                trial.recipe = self._with(trial.exceptions)
            except ValueError as error:  # a recipe that cannot have exceptions
                trial.rejected = str(error)
                return
            trial.rehearsal = self._rehearse(trial.exceptions)
            trial.rejected = trial.rehearsal.wrong(self._base)
            if not trial.rejected:
                return
            if not self._can_take(1):
                passes = f"{trial.passes:.0f} passes"
                trial.rejected += f"; in {passes}, no exceptions were found that prevent this"
                return
            if not self._add(trial.rehearsal):
                return

    def leave_room(self) -> None:
        """Widen exceptions whose results pass on in half precision and are close to overflow.

        An exception for a module replaces those for its operators. The model itself is never an
        exception.
        """
        trial = self._trial
        for _ in range(ROUNDS):
            if trial.rejected or not self._can_take(1):
                return
            if not (close := self._close(trial.exceptions)):
                return
            wider = {
                each: why
                for each, why in trial.exceptions.items()
                if not is_operator_of(each, close.module)
            }
            wider[close.module] = "results inside it come near the largest value of the format"
            found = self._rehearse(wider)
            if found.wrong(self._base) or wider == trial.exceptions:
                return
            trial.exceptions, trial.rehearsal = wider, found

    def narrow(self) -> None:
        """Remove every exception that a whole step does not need."""
        trial = self._trial
        for pattern in list(trial.exceptions):
            fewer = {each: why for each, why in trial.exceptions.items() if each != pattern}
            if self._close(fewer) or overflowed_before(self._recorded, self._formats, [pattern]):
                continue
            kept = (site for site in self._formats if self._last_bit(site) or self._equal(site))
            if any(covered(site, [pattern]) for site in kept):
                continue
            if not self._can_take(1):
                break
            found = self._rehearse(fewer)
            if not found.wrong(self._base):
                trial.exceptions, trial.rehearsal = fewer, found
        self._look_at_all_steps()
        trial.recipe = self._with(trial.exceptions)
        # Sites that overflow are left out: the step is right nevertheless, so their values do not
        # matter. An example is a mask of -1e9.
        trial.headroom = min(
            (
                (bits, site.pattern)
                for site, format_ in self._formats.items()
                if site in self._recorded.forward and not self._covered(site)
                if (bits := self._recorded.forward[site].headroom(FORMATS[format_])) >= 0
            ),
            default=trial.headroom,
        )

    def _can_take(self, passes: float) -> bool:
        return self._trial.passes + passes <= self._most

    def _look_under(self, exceptions: Mapping[str, str]) -> None:
        subject, recorded = self._subject, self._recorded
        model = subject.copied()
        model.load_state_dict(recorded.weights)
        optimizer = subject.optimizer(model)
        self._trial.rejected = why_unsafe(optimizer, self._base)
        if self._trial.rejected:  # the damage of sites does not matter
            return
        recipe = self._with(exceptions)
        with Engine(model, optimizer, recipe=recipe, nonfinite="apply") as engine:
            self._spend(FORWARD)
            with drawn_from(recorded.random_state):
                dtypes = formats_under(engine, subject, recorded.batch)
            self._formats = half_sites(dtypes)
            self._spend(WHAT_IF)
            self._trial.damages = damages(engine, recorded, dtypes, self._scale or 1.0)

    def _forward_reason(self, site: Site, damage: Damage) -> str:
        if damage.raised:
            return damage.raised
        if damage.nonfinite:
            return f"{damage.nonfinite} of its results are inf or NaN"
        format_ = self._formats.get(site)
        ranges = self._recorded.forward.get(site)
        if format_ and ranges and ranges.headroom(FORMATS[format_]) < 0:
            return f"its results reach 2^{ranges.highest}, beyond {format_}"
        return self._last_bit(site) or self._equal(site) or self._costly(damage.error)

    def _last_bit(self, site: Site) -> str:
        """Return a reason if a site's results are within a factor of two of overflow, else "".

        With other weights, or a few steps later, such results often overflow.
        """
        if not (format_ := self._formats.get(site)) or site not in self._recorded.forward:
            return ""
        room = self._recorded.forward[site].headroom(FORMATS[format_])
        if not 0 <= room < 1 or is_masked(self._recorded, site):
            return ""
        return f"its results come within a factor of two of the largest value of {format_}"

    def _equal(self, site: Site) -> str:
        """Return a reason if a site rounds positions so that some become equal, else ""."""
        largest, format_ = self._counted.get(site, 0.0), self._formats.get(site)
        if format_ is None or largest <= (exact := 2 ** (FORMATS[format_].mantissa_bits + 1)):
            return ""
        return (
            f"it is given whole numbers up to {largest:g}, such as positions, and {format_} "
            f"represents every whole number only up to {exact}"
        )

    def _backward_reason(self, damage: Damage) -> str:
        if damage.nonfinite_gradients:
            return f"{damage.nonfinite_gradients} of the gradients that it passes on are inf or NaN"
        return self._costly(damage.gradient_error)

    def _costly(self, error: float) -> str:
        in_noise = (error / self._recorded.noise_ratio) ** 2
        if in_noise <= LIMIT:
            return ""
        return (
            f"rounding adds a squared error of {in_noise:.2g} times the gradient's variance "
            "between batches"
        )

    def _add(self, found: Rehearsal) -> bool:
        """Add exceptions for the problem of a rehearsal; return whether this was possible."""
        exceptions = self._trial.exceptions
        if not found.breaks and found.gradient_damage <= LIMIT:
            stalled = found.stalled(MOST_LOST)
            modules = list(dict.fromkeys(name.rpartition(".")[0] for name in stalled))
            if "" in modules or self._elements(stalled) > 0.9 * self._elements(found.updates_lost):
                return False
            why = "its updates are inf or NaN"
            if not found.broken_updates:
                why = "its updates are too small and are rounded away"
            exceptions |= dict.fromkeys(modules, why)
            # Exceptions do not prevent drift: as weights grow, drift reaches the other modules.
            return bool(modules)
        if found.birth is not None and not covered(found.birth, exceptions):
            why = found.raised or "it turns finite values into inf or NaN"
            exceptions[found.birth.pattern] = why
            return True
        while self._once:
            if self._once.pop(0)():
                return True
        return self._widen_all() or self._add_suspect()

    def _lower_scale(self) -> bool:
        """Lower the initial loss scale at once, rather than by steps that a dynamic scale skips."""
        if self._base.scaling is None:
            return False
        self._scale = first_scale(self._recorded, self._in_half(), self._base.scaling)
        return self._scale != self._base.scaling.init

    def _in_half(self) -> dict[Site, str]:
        """Return the sites with half-precision results under the current exceptions, by format."""
        handed_on = leaving(self._recorded, self._trial.exceptions)
        return {
            site: format_
            for site, format_ in self._formats.items()
            if site in handed_on or not self._covered(site)
        }

    def _look_at_all_steps(self) -> None:
        """Lower the initial loss scale if a step before the rehearsed one needs it."""
        before = self._scale
        if before is None or not overflows(self._recorded, self._in_half(), before):
            return
        self._lower_scale()
        found = self._rehearse(self._trial.exceptions)
        if found.wrong(self._base):
            self._scale = before
        else:
            self._trial.rehearsal = found

    def _except_backward(self) -> bool:
        """Restore the recipe's loss scale, and add exceptions for sites with damaged gradients."""
        if self._base.scaling is None:
            return False
        self._scale = self._base.scaling.init
        found = {
            site.pattern: why
            for site, damage in self._trial.damages.items()
            if not self._covered(site) and (why := self._backward_reason(damage))
        }
        self._trial.exceptions |= found
        return bool(found)

    def _covered(self, site: Site) -> bool:
        return covered(site, self._trial.exceptions)

    def _close(self, exceptions: Mapping[str, str]) -> Site | None:
        if self._base.forward_format is not None:
            return None  # under autocast, results of exceptions stay in fp32
        return about_to_overflow(self._recorded, self._formats, exceptions, LITTLE_HEADROOM)

    def _elements(self, parameters: Iterable[str]) -> int:
        return sum(self._recorded.weights[name].numel() for name in parameters)

    def _widen_all(self) -> bool:
        """Replace operators by their modules; if there are none, modules by their parents."""
        exceptions = self._trial.exceptions
        operators = {site.pattern: site for site in self._trial.damages if not site.is_whole_module}
        wider = {
            pattern: operators[pattern].module if pattern in operators else around(pattern)
            for pattern in exceptions
        }
        narrowest = [pattern for pattern in wider if pattern in operators] or list(wider)
        changed = False
        for pattern in narrowest:
            if wider[pattern]:
                exceptions.setdefault(wider[pattern], exceptions.pop(pattern))
                changed = True
        return changed

    def _add_suspect(self) -> bool:
        """Add an exception for the site with the largest error that has none yet."""
        exceptions = self._trial.exceptions
        others = {
            site: damage
            for site, damage in self._trial.damages.items()
            if not covered(site, exceptions)
        }
        if not others:
            return False
        site = max(others, key=lambda each: others[each].worst_error)
        exceptions[site.pattern] = (
            f"rounding changes its results or gradients by {others[site].worst_error:.1%}"
        )
        return True

    def _rehearse(self, exceptions: Mapping[str, str]) -> Rehearsal:
        self._spend(1)
        subject, recorded, recipe = self._subject, self._recorded, self._with(exceptions)
        found = rehearse(subject, recorded, recipe, seed=self._seed)
        last = found
        if not found.wrong(self._base) and is_doubtful(found, recorded) and self._can_take(1):
            self._spend(1)
            found = over_two_steps(last, subject, recorded, recipe, seed=self._seed)
        passes = 2 * (recorded.steps - 1)  # in fp32 and under the recipe
        close = not found.wrong(self._base) and found.gradient_damage > CLOSE
        if close and self._can_take(passes):
            self._spend(passes)
            found = over_each_step(last, subject, recorded, recipe, seed=self._seed)
        if found.wrong(self._base):
            return found
        before = self._clock.following
        return followed(found, subject, recorded, recipe, seed=self._seed, before=before)

    def _spend(self, passes: float) -> None:
        self._clock.passing(passes)
        self._trial.passes += passes

    def _with(self, exceptions: Mapping[str, str]) -> Recipe:
        changes: dict[str, object] = {}
        if exceptions:
            changes["exceptions"] = dict.fromkeys(exceptions, "fp32")
        if self._scale is not None and self._base.scaling is not None:
            changes["loss_scale"] = replace(self._base.scaling, init=self._scale)
        return find_recipe({"base": self._trial.base, **changes}) if changes else self._base
