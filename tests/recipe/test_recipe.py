"""Recipes: the table, composition, contradictions, and what a wrong one is told."""

from __future__ import annotations

import itertools
import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import halfstep
from halfstep.errors import UserError
from halfstep.recipe import RECIPES, LossScale, Recipe, recipe, recipes

FIELDS = {
    "params": st.sampled_from([None, "fp32", "fp16", "bf16"]),
    "norms": st.sampled_from([None, "fp32"]),
    "autocast": st.sampled_from([None, "fp16", "bf16"]),
    "matmul": st.sampled_from([None, "ieee", "tf32"]),
    "float8": st.sampled_from([None, "dynamic", "delayed"]),
    "accumulator": st.sampled_from([None, "fp16"]),
    "master_weights": st.sampled_from([None, True, False]),
    "gradients": st.sampled_from([None, "fp32", "fp16", "bf16"]),
    "outputs": st.sampled_from([None, "fp32"]),
    "loss_scale": st.sampled_from([None, LossScale(), LossScale.parse(128)]),
    "update": st.sampled_from([None, "stochastic", "kahan"]),
    "reduce": st.sampled_from([None, "fp32", "fp16", "bf16"]),
}


@st.composite
def valid_recipes(draw) -> Recipe:
    """Named ones, and any others that do not contradict themselves."""
    if draw(st.booleans()):
        return RECIPES[draw(st.sampled_from(recipes()))][0]
    settings = {name: draw(values) for name, values in FIELDS.items()}
    name = draw(st.sampled_from(["custom", "mine", "yours"]))
    try:
        return Recipe(name=name, **settings)
    except ValueError:
        # Leaving fields out resolves every contradiction.
        return Recipe(name=name, matmul=settings["matmul"], loss_scale=settings["loss_scale"])


def compose(first: Recipe, second: Recipe) -> Recipe | str:
    try:
        return first + second
    except ValueError as error:
        return type(error).__name__


@given(valid_recipes(), valid_recipes())
def test_composition_commutes_and_conflicts_are_symmetrical(first: Recipe, second: Recipe) -> None:
    assert compose(first, second) == compose(second, first)


@given(valid_recipes(), valid_recipes())
def test_composition_keeps_every_field_of_both(first: Recipe, second: Recipe) -> None:
    both = compose(first, second)
    if isinstance(both, Recipe):
        for part in (first, second):
            assert part.settings().items() <= both.settings().items()


@given(valid_recipes())
def test_a_recipe_added_to_itself_is_itself(given_: Recipe) -> None:
    assert given_ + given_ == given_


@given(valid_recipes())
def test_settings_are_plain_and_build_the_same_recipe(given_: Recipe) -> None:
    plain = json.loads(json.dumps(given_.settings()))
    assert recipe({"name": given_.name, **plain}) == given_


def test_the_table_is_the_one_promised() -> None:
    assert recipes() == [
        "fp32", "tf32", "fp16", "fp16-acc16", "bf16", "half", "half-bn32", "o0", "o1", "o2", "o3",
        "bf16-true", "bf16-sr", "bf16-kahan", "fp8", "fp8-delayed",
        "mxfp8", "mxfp4", "nvfp4", "act2", "act3", "act4", "act8",
    ]  # fmt: skip
    assert halfstep.recipes is recipes
    for name, (row, purpose) in RECIPES.items():
        assert recipe(name) is row
        assert row.name == name
        assert purpose
    settings = [json.dumps(row.settings()) for row, _ in RECIPES.values()]
    # Apex's O1 is what autocast does today; all others differ.
    assert [name for name, s in zip(RECIPES, settings, strict=True) if settings.count(s) > 1] == [
        "fp16",
        "o1",
    ]


def test_apex_levels_have_apex_properties() -> None:
    """The table of apex.amp: cast_model_type, keep_batchnorm_fp32, master_weights, loss_scale."""
    levels = [RECIPES[f"o{level}"][0] for level in range(4)]
    assert [level.params for level in levels] == ["fp32", "fp32", "fp16", "fp16"]
    assert [level.autocast for level in levels] == [None, "fp16", None, None]
    assert [level.norms for level in levels] == [None, None, "fp32", None]
    assert [bool(level.master_weights) for level in levels] == [False, False, True, False]
    dynamic = [level.loss_scale is not None and level.loss_scale.dynamic for level in levels]
    assert dynamic == [False, True, True, False]


def test_names_compose_in_any_order_and_spelling() -> None:
    both = recipe("bf16+tf32")
    assert both == recipe(" TF32 + Bf16 ") == recipe("bf16") + recipe("tf32")
    assert (both.name, both.autocast, both.matmul) == ("tf32+bf16", "bf16", "tf32")
    assert str(recipe("bf16")) == "bf16 (params fp32, autocast bf16)"
    assert "loss_scale dynamic" in str(recipe("fp16"))
    assert str(Recipe(name="nothing")) == "nothing"


def test_a_base_that_nothing_changes_keeps_its_name() -> None:
    assert recipe({"base": "fp16"}) == recipe("fp16")
    assert recipe({"base": "fp16", "loss_scale": 8}).name == "fp16*"


def test_a_mapping_changes_a_base() -> None:
    changed = recipe({"base": "o2", "loss_scale": "128"})
    assert changed.name == "o2*"
    assert changed.loss_scale == LossScale.parse(128)
    assert str(changed.loss_scale) == "static 128"
    assert changed.settings().keys() == recipe("o2").settings().keys()
    assert recipe({"base": "o2", "name": "mine", "norms": None}).norms is None
    assert recipe({"autocast": "bf16"}) == Recipe(autocast="bf16")
    assert recipe(changed) is changed


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("fp61", "no recipe is named 'fp61'; allowed: fp32, .*; did you mean 'fp16'?"),
        ("bf16+", "no recipe is named ''"),
        ("half-bn23", "did you mean 'half-bn32'?"),
        ("fp16+bf16", "'fp16' and 'bf16' disagree on autocast: fp16 and bf16; leave one of them"),
        ("fp32+tf32", "disagree on matmul: ieee and tf32"),
        ("fp16+half", "disagree on params: fp32 and fp16"),
        ({"autocst": "fp16"}, "no recipe field is named 'autocst'; .*did you mean 'autocast'?"),
        ({"base": "bf16-khan"}, "did you mean 'bf16-kahan'?"),
        ({"autocast": "fp61"}, "recipe field autocast is 'fp61'; allowed: 'fp16', 'bf16'; did you"),
        ({"autocast": "fp16", "params": "fp16"}, "write params='fp32' or leave autocast out"),
        ({"norms": "fp32"}, "params is not set; write params='fp16' or leave norms out"),
        ({"params": "fp32", "master_weights": True}, "needs parameters in a half format"),
        ({"params": "bf16", "gradients": "fp16"}, "neither fp32 nor the parameters' 'bf16'"),
        ({"params": "fp16", "update": "kahan"}, "write params='bf16', or master_weights=True"),
        (
            {"params": "bf16", "update": "kahan", "master_weights": True},
            "replaces fp32 master weights, but master_weights is True; leave one of them out",
        ),
        ({"loss_scale": "dynamc"}, "loss_scale is 'dynamc'; allowed: 'dynamic', a positive number"),
        ({"loss_scale": -1}, "loss_scale is -1"),
        ({"loss_scale": True}, "loss_scale is True"),
        ({"loss_scale": "inf"}, "loss_scale is 'inf'"),
        ({"loss_scale": {"innit": 1}}, "no loss_scale field is named 'innit'; .*mean 'init'?"),
        ({"loss_scale": {"init": "1e4"}}, "loss_scale.init is '1e4'; allowed: a number"),
        ({"loss_scale": {"init": 2.0**-11}}, r"loss_scale.init .*floor <= init <= ceiling"),
        ({"loss_scale": {"dynamic": "no"}}, "loss_scale.dynamic is 'no'; allowed: True or False"),
        ({"loss_scale": {"growth_factor": 1.0}}, "growth_factor is 1.0; allowed: more than 1"),
        ({"loss_scale": {"growth_interval": 0}}, "growth_interval is 0; allowed: 1 or more"),
        ({"loss_scale": {"backoff_factor": 1.0}}, "backoff_factor is 1.0; allowed: between 0"),
        ({"loss_scale": {"collapse_after": 0}}, "collapse_after is 0"),
        ({"loss_scale": 1e-40}, "loss_scale.floor is 1e-40; allowed: 1.18e-38 or more"),
        ({"loss_scale": 1e39}, "loss_scale.ceiling is 1e\\+39; allowed: 3.4e\\+38 or less"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_way_out(spec: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipe(spec)


def test_every_pair_of_names_composes_unless_fields_differ_or_clash() -> None:
    composed = set()
    for first, second in itertools.combinations(recipes(), 2):
        both = compose(RECIPES[first][0], RECIPES[second][0])
        assert both == compose(RECIPES[second][0], RECIPES[first][0])
        if isinstance(both, Recipe):
            assert set(both.name.split("+")) == {first, second}
            composed.add((first, second))
    assert {("tf32", "fp16"), ("fp32", "bf16"), ("fp16", "o1"), ("half", "o3")} <= composed
    assert ("bf16-sr", "bf16-kahan") not in composed
    assert not any("o2" in pair and "fp16" in pair for pair in composed)


def test_recipes_cannot_be_changed_and_can_be_keys() -> None:
    with pytest.raises(FrozenInstanceError):
        recipe("fp16").params = "fp16"
    assert {recipe("fp16"): 1}[recipe("fp16")] == 1


def test_the_path_of_a_config_stands_for_its_recipe(tmp_path) -> None:
    file = tmp_path / "t4.yaml"
    file.write_text("base: digits\nrecipe: {base: fp16, loss_scale: {init: 256}}\n")
    assert (
        recipe(file) == recipe(str(file)) == recipe({"base": "fp16", "loss_scale": {"init": 256}})
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read a recipe from .*t4.yaml.*No such file"),
        ("base: digits\n", "t4.yaml itself sets no recipe .*; add a line such as recipe: fp16"),
        ("recipe: [1\n", "t4.yaml, line .* is not valid YAML"),
        ("recipe: 16\n", "t4.yaml itself sets no recipe"),
        ("recipe: t4.yaml\n", "no recipe is named 't4.yaml'"),
    ],
)
def test_a_file_without_a_recipe_is_refused(tmp_path, text: str | None, said: str) -> None:
    file = tmp_path / "t4.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        recipe(file)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UserError) or text == "recipe: t4.yaml\n"
