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


def test_a_named_recipe_keeps_its_purpose(halfstep):
    code, out, _ = halfstep(
        "recipes", "fp16", "fp16+act2", "{base: fp16, loss_scale: 128}", "--json"
    )
    assert code == 0
    assert [row["purpose"] for row in json.loads(out)] == [RECIPES["fp16"][1], "", ""]


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
    assert "inputs rounded to tf32" in row["on cpu"][0]["reason"]


def test_an_unknown_device_is_refused(halfstep):
    code, _, error = halfstep("recipes", "--on", "gpu")
    assert code == 2
    assert "device is 'gpu'" in error


def test_any_recipe_can_be_shown_with_its_exceptions(halfstep):
    spec = '{base: o2, name: mine, exceptions: {"head.*": fp32}}'
    code, out, _ = halfstep("recipes", spec, "fp16+tf32", "--markdown", "--on", "cpu")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["mine", "tf32+fp16"]
    assert rows[0][1].endswith("loss_scale dynamic, exceptions head.*:fp32")


def test_fields_are_listed_with_their_values(halfstep):
    code, out, _ = halfstep("recipes", "--fields", "--json")
    assert code == 0
    fields = {row["field"]: row for row in json.loads(out)}
    assert list(fields["params"]["values"]) == ["fp32", "fp16", "bf16"]
    assert all(row["purpose"].endswith(".") for row in fields.values())


def test_a_mapping_that_is_none_is_refused(halfstep):
    code, _, error = halfstep("recipes", "{base: o2")
    assert code == 2
    assert "recipe '{base: o2' is not valid YAML" in error


MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 10))

def wrong():
    return 3
"""


def test_the_layers_of_a_model_are_explained(halfstep, tmp_path):
    file = tmp_path / "nets.py"
    file.write_text(MODEL)
    flags = ("recipes", "fp8", "--on", "h200", "--model", f"{file}:build")
    code, out, _ = halfstep(*flags, "--samples", "8192", "--markdown")
    assert code == 0
    gain = "| 0 | 4096 | 4096 | 8192 | 1.38 (predicted) | in fp8-e4m3 | from 2048 samples on"
    assert gain in out
    assert "| 1 | 4096 | 10 | 8192 |  | in bf16 | widths not multiples of 16 |" in out
    assert out.endswith("fp8 on h200: 1 native, 1 left out of 2 layers\n")
    code, out, _ = halfstep(*flags, "--json")
    assert [row["computes"] for row in json.loads(out)] == ["native", "left out"]
    code, out, _ = halfstep("recipes", "fp8", "--on", "cpu", "--model", f"{file}:build")
    assert "1 rehearsed, 1 left out" in out


def test_what_cannot_be_explained_is_refused_in_a_line(halfstep, tmp_path):
    file = tmp_path / "others.py"
    file.write_text(MODEL)
    build = ("--model", f"{file}:build")
    refused = {
        ("fp16", "--on", "h200", *build): "recipe 'fp16' changes no layers, as fp8, mxfp8 and",
        ("--on", "h200", *build): "one recipe, but none is given; write fp8",
        ("fp8", *build): "--model is given without --on; write --on cuda or --on h200",
        ("fp8", "--on", "gpu", *build): "device is 'gpu'; allowed: cpu, cuda, cuda:1, gb300, b300",
        ("fp8", "--on", "h200", "--model", f"{file}:wrong"): "returns int; allowed: a torch.nn",
        ("fp8", "--on", "h200", "--samples", "8"): "--samples is given without --model",
    }
    for words, said in refused.items():
        code, _, error = halfstep("recipes", *words)
        assert (code, said in error, error.count("\n")) == (2, True, 1), error
