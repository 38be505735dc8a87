"""Statements of a program are found by a line of theirs and rewritten where that is safe."""

from __future__ import annotations

import pytest

from halfstep.doctor.record.source import (
    argument,
    difference,
    in_fp32,
    is_only_call,
    other_lines_with_eps,
    statement,
    with_argument,
    with_converted_argument,
)

PROGRAM = """\
def build(model):
    return Adam(
        model.parameters(),  # größte
        lr=0.1,
    )

optimizer = build(model); other = 2
with open(x) as file:
    pass
"""


@pytest.mark.parametrize("line", [2, 3, 4])
def test_a_statement_over_several_lines_is_found_whole_and_without_indentation(tmp_path, line):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    found = statement((str(path), line, "build"))
    assert found.startswith("return Adam(\n    model")
    assert found.endswith("\n)")


def test_of_a_block_or_a_program_that_cannot_be_parsed_it_is_the_line_alone(tmp_path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    assert statement((str(path), 8, "")) == "with open(x) as file:"
    (tmp_path / "cell.py").write_text("%magic\nx = 1\n")
    assert statement((str(tmp_path / "cell.py"), 2, "")) == "x = 1"
    assert statement((str(tmp_path / "gone.py"), 2, "")) == ""
    assert statement(None) == ""


REWRITTEN = {
    "o = optim.Adam(p, lr=1)": "o = optim.Adam(p, lr=1, eps=1e-4)",
    "o = Adam(p, eps=eps or 1e-8, lr=1)": "o = Adam(p, eps=1e-4, lr=1)",
    "Adam(p, 1, (0.9, 0.99), 1e-8)": "Adam(p, 1, (0.9, 0.99), 1e-4)",
    "a = [Adam([é], lr=1), SGD(p)]": "a = [Adam([é], lr=1, eps=1e-4), SGD(p)]",
    "Adam(\n    p,\n    lr=1,  # low\n)": "Adam(\n    p,\n    lr=1, eps=1e-4,  # low\n)",
    "make(p, lr=1)": None,
    "Adam(p, **settings)": None,
    "Adam(*given)": None,
    "a, b = Adam(p), Adam(q)": None,
    "Adam(": None,
    "": None,
}


@pytest.mark.parametrize("text", REWRITTEN)
def test_an_argument_is_put_where_it_is_sure_to_be_meant(text) -> None:
    assert with_argument(text, "Adam", "eps", "1e-4", position=3) == REWRITTEN[text]


def test_a_difference_marks_the_lines_that_change() -> None:
    change = difference("f(\n    a,\n)", "f(\n    a, b,\n)")
    assert change == ("  f(", "-     a,", "+     a, b,", "  )")


FOCAL = """\
class Focal:
    def __init__(self, eps=1e-8):
        self.eps = eps

    def forward(self, p):
        low = log(p + self.eps)
        high = log(1 - p + self.eps)
        steps = self.steps
        return low + high, p + 1e-8 * 0, self.eps_of_another
"""


def test_other_lines_with_the_same_eps_are_found(tmp_path):
    path = tmp_path / "focal.py"
    path.write_text(FOCAL)
    assert other_lines_with_eps((str(path), 6, "forward"), 1e-8) == (7,)
    assert other_lines_with_eps((str(path), 9, "forward"), 1e-8) == ()
    assert other_lines_with_eps((str(path), 8, "forward"), 1e-8) == ()
    assert other_lines_with_eps((str(path), 9, "forward"), 0.0) == ()
    assert other_lines_with_eps(None, 1e-8) == ()


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("p = torch.exp(a @ b / 0.07)", "p = torch.exp((a @ b / 0.07).float())"),
        ("return x[0].exp().sum()", "return x[0].float().exp().sum()"),
        ("p = torch.exp(scores) + 1", "p = torch.exp(scores.float()) + 1"),
        ("p = torch.exp(a) + torch.exp(b)", None),
        ("p = exp(*given)", None),
        ("p = torch.exp(input=h)", "p = torch.exp(input=h.float())"),
        ("torch.exp(h, out=p)", None),
        ("p = f(", None),
    ],
)
def test_the_argument_of_a_function_is_converted(text: str, changed: str | None) -> None:
    assert with_converted_argument(text, "exp", ".float()") == changed


@pytest.mark.parametrize(
    ("text", "function", "changed"),
    [
        ("y = h * level**power", "pow", "y = h * level.float()**power"),
        ("y = (a - b) ** 0.5", "pow", "y = (a - b).float() ** 0.5"),
        ("y = x.pow(0.5)", "pow", "y = x.float().pow(0.5)"),
        ("y = torch.pow(x, p)", "pow", "y = torch.pow(x.float(), p)"),
        ("y = x**2 + z**0.5", "pow", None),
        ("y = torch.pow(x**2, p)", "pow", None),
        ("y = 2**x", "pow", None),
        ("y = x.norm(2)", "norm", "y = x.float().norm(2)"),
        ("y = x.std((-2, -1))", "std", "y = x.float().std((-2, -1))"),
        ("y = self.norm(x)", "norm", "y = self.norm(x.float())"),
    ],
)
def test_the_base_of_a_power_and_the_tensor_of_a_method_are_converted(text, function, changed):
    assert with_converted_argument(text, function, ".float()") == changed


@pytest.mark.parametrize(
    ("text", "format_", "changed"),
    [
        ("model = Net().half().cuda()", "fp16", "model = Net().float().cuda()"),
        ("model.to(device, torch.bfloat16)", "bf16", "model.to(device, torch.float32)"),
        ("model.to(dtype=torch.half)", "fp16", "model.to(dtype=torch.float32)"),
        ("a, b = a.half(), b.bfloat16()", "bf16", "a, b = a.half(), b.float()"),
        ("model.to(dtype)", "fp16", None),
    ],
)
def test_a_cast_to_a_half_format_becomes_one_to_fp32(
    text: str, format_: str, changed: str | None
) -> None:
    assert in_fp32(text, format_) == changed


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("opt.zero_grad(set_to_none=True)", True),
        ("opt.zero_grad(); loss.backward()", False),
        ("loss = closure()", False),
        ("if last: opt.step()", False),
        ("def step(", False),
    ],
)
def test_a_line_may_contain_more_than_a_call(text: str, *, is_one: bool) -> None:
    assert is_only_call(text) is is_one


@pytest.mark.parametrize(
    ("text", "function", "given", "at", "found"),
    [
        ("loss = F.mse_loss(model(x), batch.y)", "mse_loss", 2, 1, "batch.y"),
        ("loss = F.mse_loss(model(x), target=y[0])", "mse_loss", 1, "target", "y[0]"),
        ("loss = F.mse_loss(model(x), y.float())", "mse_loss", 2, 1, ""),
        ("loss = F.mse_loss(a, b) + F.mse_loss(c, b)", "mse_loss", 2, 1, ""),
        ("loss = criterion(model(x), y)", None, 2, 1, "y"),
        ("loss = criterion(model(x), y)", None, 1, 0, "x"),
        ("loss = criterion(model(x), target=y)", None, 1, "target", "y"),
        ("out = head(body(x))", None, 1, 0, ""),
        ("out = model(*batch)", None, 1, 0, ""),
        ("out = model(*batch)", None, 2, 1, ""),
        ("for x in loader:", None, 1, 0, ""),
    ],
)
def test_the_source_of_an_argument_is_found_if_only_one_call_can_be_meant(
    text: str, function: str | None, given: int, at: int | str, found: str
) -> None:
    assert argument(text, function, given, at) == found
