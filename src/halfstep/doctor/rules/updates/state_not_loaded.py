"""A load with strict=False matches none of a module's names, so the weights stay as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import argument
from halfstep.doctor.signals.loads import Load, Loads
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_MOST = 0.5  # of the parameters, which another prefix must reach


def judge(evidence: Evidence) -> Finding | None:
    """Find a module that the program uses, and whose state it believes to have loaded."""
    lost = evidence.of(Loads).empty
    first = max(lost, key=lambda each: each.renamed / each.parameters, default=None)
    if first is None:
        return None
    is_prefix = first.renamed >= _MOST * min(
        first.parameters, first.parameters if first.inside else first.given
    )
    if first.matched and not is_prefix:
        return None
    count = f"{first.matched or 'none'} of the {first.parameters} parameters"
    facts = f'the first parameter is "{first.expected}", the first name of the state "{first.got}"'
    more = (f"with {_words(first)}, {first.renamed} names and shapes match",) if is_prefix else ()
    return Finding(
        summary=f"load_state_dict(strict=False) has set {count} of {first.module}: the names of "
        f"the state, {first.given} in all, are other ones, so the weights are those of before the "
        "load",
        facts=(facts, *more),
        change=_change(first) if is_prefix else _by_hand(first),
        confidence=LIKELY if is_prefix else POSSIBLE,
        site=first.site,
    )


def _words(load: Load) -> str:
    if load.inside:
        return f'in the entry "{load.inside}" of the state'
    return f'with "{load.removed}" removed' if load.removed else f'with "{load.added}" in front'


def _change(load: Load) -> tuple[str, ...]:
    """Return the lines that give the names of a state the right prefix."""
    line = load.site.text if load.site else "module.load_state_dict(state, strict=False)"
    state = argument(load.made_by, "load_state_dict", 1, 0)
    if not state.isidentifier():
        return (f"+ # load other names: {_words(load)}, they match", *_by_hand(load)[1:])
    if load.inside:
        return (f'+ {state} = {state}["{load.inside}"]', f"  {line}")
    name = f'name.removeprefix("{load.removed}")' if load.removed else f'"{load.added}" + name'
    chosen = f' if name.startswith("{load.removed}")' if load.removed else ""
    return (
        f"+ {state} = {{{name}: each for name, each in {state}.items(){chosen}}}",
        f"  {line}",
    )


def _by_hand(load: Load) -> tuple[str, ...]:
    line = load.site.text if load.site else "module.load_state_dict(state, strict=False)"
    return (
        f"  {line}",
        "+ # strict=True says which names differ; otherwise, check missing_keys of the result",
    )


RULE = Rule(
    code="STATE_NOT_LOADED",
    name="a loaded state that matches no parameter",
    rows=(11,),
    citations=("torchgeo/torchgeo#4036", "pytorch/pytorch#141256"),
    needs=frozenset({"loads"}),
    judge=judge,
    harmless=True,
)
