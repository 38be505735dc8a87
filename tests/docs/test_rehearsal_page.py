"""The programs of docs/rehearsal.md run."""

import json
import re
from pathlib import Path

import torch

import halfstep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rehearsal.md").read_text()
KERNELS, ROUNDING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_a_loop_of_ones_own_gets_the_kernels():
    names = {
        "torch": torch,
        "criterion": torch.nn.functional.cross_entropy,
        "model": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)),
        "images": torch.randn(2, 1, 2, 2),
        "labels": torch.tensor([0, 2]),
    }
    exec(KERNELS, names)
    assert names["loss"].isfinite()
    assert all(param.grad is not None for param in names["model"].parameters())


def test_rounding_gives_values_of_the_format():
    exec(
        ROUNDING.replace("round_to(weights", "rounded = round_to(weights"),
        names := {"weights": torch.tensor([1.07, 1e6])},
    )
    assert names["rounded"].tolist() == [1.125, 448.0]


def test_every_format_of_the_table_is_a_recipe():
    table = PAGE[PAGE.index("| rehearsed | how |") :]
    named = {
        name
        for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
        for name in row.split(", ")
    }
    assert named - {"rehearsed", "---"} <= set(halfstep.recipes())


def test_distances_to_a_tensor_core_are_those_measured():
    results = ROOT / "benchmarks" / "results" / "fp8_distance.json"
    distances = json.loads(results.read_text())["distances"]
    largest = {
        product: max(d["before_rounding"] for d in distances if d["product"] == product)
        for product in ("forward", "gradient")
    }
    of_fp8 = [d["of_fp8"] for d in distances]
    said = (
        f"{len(distances)} matrix products with factors typical of networks; each sum has "
        f"{min(d['inner'] for d in distances):,} to {max(d['inner'] for d in distances):,} terms. "
        "Results of the rehearsal differ from the H100's by at most "
        f"{largest['forward']:.2%} in the forward pass and by at most {largest['gradient']:.2%} in "
        "gradients (relative 2-norms). Rounding the factors to FP8 changes a product much more, by "
        f"{min(of_fp8):.1%} to {max(of_fp8):.1%}."
    )
    assert said in " ".join(PAGE.split())


def test_the_first_row_about_a_cpu_is_a_whole_run_that_resumes(tmp_path):
    assert 'halfstep.fit(..., device="cpu", overrides={"max_steps": 20})' in PAGE

    def rehearsed(model, **more):
        data = [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(30)]
        return halfstep.fit(
            model,
            torch.optim.SGD(model.parameters(), lr=0.01),
            data,
            data[:2],
            loss=torch.nn.functional.mse_loss,
            epochs=9,
            recipe="fp16",
            device="cpu",
            overrides={"max_steps": 20},
            out=tmp_path / "run",
            quiet=True,
            **more,
        )

    first = rehearsed(torch.nn.Linear(2, 1))
    assert (first.status, first.summary.steps) == ("finished", 20)
    assert first.best
    assert (first.run / "checkpoints" / "last.pt").is_file()
    resumed = torch.nn.Linear(2, 1)
    assert rehearsed(resumed, resume="auto").summary.steps == 20
    assert first.best_weights().keys() == resumed.state_dict().keys()
