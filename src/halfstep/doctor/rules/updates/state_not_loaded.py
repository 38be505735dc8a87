"""The names of a state match none of a module's, so the weights stay as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import argument
from halfstep.doctor.signals.program.loads import Load, Loads
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.tensors.renamed import Renaming

_MOST = 0.8  # of the parameters, or of the state: what other names must reach
_FEWEST = 2  # parameters


def judge(evidence: Evidence) -> Finding | None:
    """Find a module that the program uses, and whose state it believes to have loaded."""
    lost = evidence.of(Loads).empty
    first = max(lost, key=lambda each: each.renaming.count / each.parameters, default=None)
    if first is None:
        return None
    change = first.renaming
    whole = first.parameters if change.inside else first.given
    is_prefix = change.count >= max(_FEWEST, _MOST * min(first.parameters, whole))
    if (first.matched or first.filtered or first.unread) and not is_prefix:
        return None
    count = f"{first.matched or 'none'} of the {first.parameters} parameters"
    return Finding(
        summary=f"load_state_dict gives {first.module} its own weights: none of the {first.given} "
        "names in the loaded file has passed the filter, because they are other ones"
        if first.filtered
        else f"the program reads none of the {first.given} tensors of this file, because their "
        f"names are other ones than those of {first.module}, which keeps the weights of before"
        if first.unread
        else f"load_state_dict(strict=False) has set {count} of {first.module}: the names of the "
        f"state, {first.given} in all, are other ones, so the weights are those of before the load",
        facts=(
            f'the first parameter is "{first.expected}", the first name of the state "{first.got}"',
            *([f"{_words(change)}, {change.count} names and shapes match"] if is_prefix else ()),
        ),
        change=_change(first) if is_prefix else _by_hand(first),
        confidence=LIKELY if is_prefix else POSSIBLE,
        site=first.site,
    )


def _words(change: Renaming) -> str:
    if change.inside:
        return f'in the entry "{change.inside}" of the state'
    prefix = change.removed or change.added
    return f'with "{prefix}" {"removed" if change.removed else "in front"}'


def _change(load: Load) -> tuple[str, ...]:
    """Return the lines that give the names of a state the right prefix."""
    line = load.site.text if load.site else "module.load_state_dict(state, strict=False)"
    state, change = argument(load.made_by, "load_state_dict", 1, 0), load.renaming
    if load.unread:
        return (
            f"  {line}",
            f"+ # before its tensors are chosen by name, rename them: {_words(change)}",
        )
    if load.filtered:
        return (
            f"+ # before the filter, rename what the file contains: {_words(change)}",
            f"  {line}",
        )
    if not state.isidentifier():
        return (f"+ # load other names: {_words(change)}, they match", *_by_hand(load)[1:])
    if change.inside:
        return (f'+ {state} = {state}["{change.inside}"]', f"  {line}")
    removed = change.removed
    name = f'name.removeprefix("{removed}")' if removed else f'"{change.added}" + name'
    chosen = f' if name.startswith("{removed}")' if removed else ""
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
