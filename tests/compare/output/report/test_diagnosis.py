"""The page of a diagnosis says what the diagnosis says, and opens in a browser, narrow and dark."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor import Diagnosis, Evidence, Watch, diagnose
from halfstep.show.diagnosis import page


class Gate(nn.Module):
    """Divides by zero on request."""

    closed = False

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.exp().sub(1).mul(0).log() if self.closed else features


@pytest.fixture(scope="module")
def diagnosed() -> tuple[Diagnosis, Evidence]:
    """A program whose loss is infinite at its sixth step, under a scaler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Gate(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watch = Watch()
    watch.know([model], [optimizer], scaler)
    with watch:
        for step in range(8):
            model[1].closed = step == 5
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1]))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    evidence = watch.close()
    return diagnose(evidence), evidence


def test_it_holds_verdict_line_change_birth_and_what_was_run_again(diagnosed) -> None:
    diagnosis, evidence = diagnosed
    html = page(diagnosis, evidence)
    (verdict,) = diagnosis.verdicts
    assert f'data-code="{verdict.code}"' in html
    assert f"test_diagnosis.py:{verdict.finding.site.line}" in html
    for line in verdict.finding.change:
        assert re.sub(r"[<>&'\"].*", "", line) in html
    assert "aten.log" in html
    row = (
        r'data-label="step">5</td>.*?data-label="how">(.*?)</td>.*?data-label="outcome">(.*?)</td>'
    )
    rows = re.findall(row, html)
    assert rows == [
        ("unchanged", "not finite"),
        ("lower scale", "not finite"),
        ("fp32", "not finite"),
    ]


def test_what_a_program_wrote_is_text_and_no_markup(diagnosed) -> None:
    from dataclasses import replace

    diagnosis, evidence = diagnosed
    (verdict,) = diagnosis.verdicts
    finding = replace(verdict.finding, summary="<script>alert(1)</script>")
    html = page(replace(diagnosis, verdicts=(replace(verdict, finding=finding),)), evidence)
    assert "<script>alert(1)" not in html


def test_a_healthy_program_gets_nothing_found_and_its_headroom() -> None:
    html = page(Diagnosis(headroom="headroom: 11.2 bits to overflow"), Evidence())
    assert "nothing found" in html
    assert "11.2 bits" in html
    assert "new Chart" not in html


@pytest.mark.parametrize(("width", "theme"), [(400, "dark"), (1600, "light")])
def test_it_opens_offline_without_an_error_and_fits(chromium, diagnosed, tmp_path, width, theme):
    path = tmp_path / "diagnosis.html"
    path.write_text(page(*diagnosed))
    viewport = {"width": width, "height": 900}
    context = chromium.new_context(viewport=viewport, color_scheme=theme, offline=True)
    opened, wrong = context.new_page(), []
    opened.on("console", lambda said: wrong.append(said.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto(path.as_uri())
    opened.wait_for_selector("#charts figure svg")
    assert wrong == []
    assert opened.locator("#charts figure").count() == 3
    assert opened.locator("#charts [data-nonfinite='5']").count() == 1  # its gradients were skipped
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_the_first_replays_are_shown_and_the_others_on_demand(diagnosed, monkeypatch) -> None:
    assert "<details" not in page(*diagnosed)
    monkeypatch.setattr("halfstep.show.diagnosis.FIRST_REPLAYS", 1)
    html = page(*diagnosed)
    (rest,) = re.findall(r"<details.*?</details>", html, re.DOTALL)
    assert html.count('data-label="how">unchanged<') == 1
    assert 'data-label="how">unchanged<' not in rest
    assert rest.count('data-label="how">') == html.count('data-label="how">') - 1 >= 1
