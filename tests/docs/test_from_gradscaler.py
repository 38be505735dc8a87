"""The programs of docs/from-gradscaler.md run, and end where the page says."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "from-gradscaler.md"
BEFORE, AFTER, RESUME = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(program: str, **names: object) -> dict:
    exec(compile(program, str(PAGE), "exec"), names)
    return names


def test_both_loops_end_with_the_same_weights_and_learning_rate():
    before, after = run(BEFORE), run(AFTER)
    for plain, ours in zip(before["model"].parameters(), after["model"].parameters(), strict=True):
        assert torch.equal(plain, ours)
    assert before["scaler"].get_scale() == after["engine"].loss_scale
    assert before["scheduler"].get_last_lr() == after["scheduler"].get_last_lr()


def test_resuming_restores_the_run(tmp_path):
    names = run(AFTER)
    weights = [param.clone() for param in names["model"].parameters()]
    resumed = run(RESUME, **names, path=tmp_path / "run.pt")
    pairs = zip(weights, resumed["model"].parameters(), strict=True)
    assert all(torch.equal(before, after) for before, after in pairs)
    assert resumed["engine"].steps == 5
