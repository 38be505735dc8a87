import json

from halfstep.recipe import RECIPES, recipe


def test_table_names_every_recipe_and_its_purpose(halfstep):
    code, out, _ = halfstep("recipes")
    assert code == 0
    flat = " ".join(out.split())
    for name, (_, purpose) in RECIPES.items():
        assert name in flat
        assert purpose.split()[0] in flat
    assert "loss_scale dynamic" in " ".join(out.split())


def test_json_settings_build_the_recipe_again(halfstep):
    code, out, _ = halfstep("recipes", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["name"] for row in rows] == list(RECIPES)
    for row in rows:
        assert recipe({"name": row["name"], **row["settings"]}) == RECIPES[row["name"]][0]
        assert row["purpose"] == RECIPES[row["name"]][1]


def test_two_formats_at_once_are_refused(halfstep):
    code, _, error = halfstep("recipes", "--json", "--markdown")
    assert code == 2
    assert "write one of them" in error


def test_a_device_says_what_it_does(halfstep):
    code, out, _ = halfstep("recipes", "--on", "cpu", "--markdown")
    assert code == 0
    on = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in out.splitlines()}
    assert on["fp32"] == "native"
    assert on["fp8"] == on["tf32"] == "rehearsed"
    assert on["fp16"] == recipe("fp16").resolve("cpu").how
    code, out, _ = halfstep("recipes", "--on", "cpu", "--json")
    row = next(row for row in json.loads(out) if row["name"] == "tf32")
    assert row["on cpu"][0]["how"] == "rehearsed"
    assert "inputs are rounded" in row["on cpu"][0]["reason"]


def test_an_unknown_device_is_refused(halfstep):
    code, _, error = halfstep("recipes", "--on", "gpu")
    assert code == 2
    assert "device is 'gpu'" in error
