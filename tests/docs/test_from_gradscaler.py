"""The programs of docs/from-gradscaler.md run, and end where the page says."""

import re
from pathlib import Path

import torch

from halfstep import cpu_half

PAGE = Path(__file__).parents[2] / "docs" / "from-gradscaler.md"
BEFORE, AFTER, CLOSURE, RESUME = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(program: str, **names: object) -> dict:
    exec(compile(program, str(PAGE), "exec"), names)
    return names


def test_both_loops_end_with_the_same_weights_and_learning_rate():
    with cpu_half():
        before = run(BEFORE)
    after = run(AFTER)
    for plain, ours in zip(before["model"].parameters(), after["model"].parameters(), strict=True):
        assert torch.equal(plain, ours)
    assert before["scaler"].get_scale() == after["engine"].loss_scale
    assert before["scheduler"].get_last_lr() == after["scheduler"].get_last_lr()


def test_a_closure_trains_as_lbfgs_alone_does():
    ours = run(CLOSURE)
    assert ours["losses"][-1] < 0.5 * ours["losses"][0]
    plain = (
        CLOSURE[: CLOSURE.index("engine = ")]
        + """
def closure():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    return float(loss.detach())

for _ in range(5):
    closure()
    optimizer.step(closure)
"""
    )
    with cpu_half():
        alone = run(plain)
    for one, other in zip(ours["model"].parameters(), alone["model"].parameters(), strict=True):
        assert torch.equal(one, other)


def test_resuming_restores_the_run(tmp_path):
    path = tmp_path / "run.pt"
    save, load = RESUME.split("saved =")
    whole = run(AFTER)
    names = {"torch": torch, "path": path}
    exec(save, {**names, "model": whole["model"], "engine": whole["engine"]})
    # The same program, which has trained on other data, takes over what was saved.
    other = run(AFTER.replace("manual_seed(0)", "manual_seed(1)"))
    exec("saved =" + load, {**names, "model": other["model"], "engine": other["engine"]})
    for each in (whole, other):
        run(AFTER[AFTER.index("for images") :], **{**each, "data": whole["data"]})
    pairs = zip(whole["model"].parameters(), other["model"].parameters(), strict=True)
    assert all(torch.equal(ours, resumed) for ours, resumed in pairs)
    assert whole["engine"].steps == other["engine"].steps == 10
    assert whole["scheduler"].get_last_lr() == other["scheduler"].get_last_lr()
