import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from halfstep import lazy_dataclass


def _classes(**options: Any) -> tuple[type[Any], type[Any]]:
    made = []
    for decorator in (lazy_dataclass.dataclass, dataclasses.dataclass):

        class Base:
            first: int

        class Entry(decorator(slots=True, **options)(Base)):  # type: ignore[misc]
            kind: ClassVar[str] = "entry"
            second: str = "two"
            third: list[int] = field(default_factory=list)

            def total(self) -> int:
                return int(self.first) + len(self.third)

        made.append(decorator(slots=True, **options)(Entry))
    return made[0], made[1]


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"eq": False}])
def test_instances_are_those_of_a_data_class(options: dict[str, bool]) -> None:
    ours, theirs = _classes(**options)
    for kind in (ours, theirs):
        one, other = kind(1), kind(1, third=[])
        assert one.total() == 1
        assert one.third is not other.third
        assert (one == other) is (options.get("eq", True))
        assert one != kind(2)
        assert one != (1, "two", [])
        assert replace(one, first=3).first == 3
        assert asdict(one) == {"first": 1, "second": "two", "third": []}
        assert [each.name for each in fields(kind)] == ["first", "second", "third"]
        assert not hasattr(one, "__dict__")
        assert copy.deepcopy(one).second == "two"
        match one:
            case kind(first, second):
                assert (first, second) == (1, "two")
    assert repr(ours(1)) == repr(theirs(1))


def test_a_frozen_class_has_a_hash_and_keeps_its_values() -> None:
    ours, theirs = _classes(frozen=True)
    for kind in (ours, theirs):
        one = kind(1, "two", ())
        assert {one, kind(1, "two", ())} == {one}
        with pytest.raises(FrozenInstanceError, match="first"):
            one.first = 2
        with pytest.raises(FrozenInstanceError, match="first"):
            del one.first
    changing, _ = _classes()
    changed = changing(1)
    changed.first = 2
    assert changed.first == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(changed)


@lazy_dataclass.dataclass(frozen=True, slots=True)
class _Stored:
    number: int
    name: str = ""


def test_instances_are_pickled() -> None:
    stored = pickle.dumps(_Stored(1, "one"))
    assert pickle.loads(stored) == _Stored(1, "one")  # written above


def test_wrong_arguments_are_errors_that_name_the_class() -> None:
    ours, theirs = _classes(frozen=True)
    for kind in (ours, theirs):
        with pytest.raises(TypeError, match=r"Entry\.__init__\(\) missing 1 required"):
            kind()
        with pytest.raises(TypeError, match="unexpected keyword argument 'fourth'"):
            kind(1, fourth=4)


def test_any_name_of_a_field_is_allowed() -> None:
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Count:
        missing: int
        set_: list[int] = field(default_factory=list)

    assert Count(3).set_ == []
    assert Count(3, [1]) == Count(3, [1]) != Count(2, [1])
