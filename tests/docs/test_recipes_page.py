"""docs/recipes.md says what the code does: its tables are printed and counted here."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import halfstep
from halfstep.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()


def between(mark: str) -> str:
    return re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", PAGE, re.DOTALL)[1]


def size(tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None and t.numel() > 1)


def counted(recipe: str) -> list[int]:
    """Count the bytes of each kind for each parameter after a step with AdamW."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)
    with halfstep.Engine(model, optimizer, recipe=recipe) as engine:
        with engine.autocast():
            loss = engine.model(torch.randn(8, 64)).float().square().mean()
        engine.backward(loss)
        gradients = size(param.grad for param in model.parameters())
        engine.step()
        held = [param for group in optimizer.param_groups for param in group["params"]]
        own = set(model.parameters())
        compensations = engine.state_dict()["techniques"].get("RoundedUpdate", {})
        kinds = [
            size(model.parameters()),
            gradients,
            size(param for param in held if param not in own),
            size(value for state in optimizer.state.values() for value in state.values()),
            size(compensations.get("compensations", [])),
        ]
    per_parameter = [kind // 64**2 for kind in kinds]
    return [*per_parameter, sum(per_parameter)]


def test_the_table_is_what_the_command_prints(capsys):
    assert main(["recipes", "--markdown"]) == 0
    assert between("table") == capsys.readouterr().out


def test_the_fields_are_what_the_command_prints(capsys):
    assert main(["recipes", "--fields", "--markdown"]) == 0
    assert between("fields") == capsys.readouterr().out


@pytest.mark.parametrize("recipe", [name for name in halfstep.recipes() if "act" not in name])
def test_the_bytes_are_those_of_a_real_step(recipe):
    rows = {row.split("|")[1].strip(): row for row in between("bytes").splitlines()[2:]}
    said = [int(cell) for cell in rows[recipe].split("|")[2:-1]]
    assert said == counted(recipe)


def test_every_recipe_is_explained():
    explained = " ".join(re.findall(r"^### (.*)$", PAGE, re.MULTILINE)).replace(",", "").split()
    assert explained == halfstep.recipes()


def test_the_translation_has_the_same_recipes_and_fields():
    def names(page: str) -> list[str]:
        cells = re.findall(r"^\| ([a-z][\w-]*) \|", page, re.MULTILINE)
        return [cell for cell in cells if cell not in {"recipe", "field"}]

    assert names((Path(__file__).parents[2] / "docs" / "recipes.zh.md").read_text()) == names(PAGE)
