"""The report as a person has it: in a real browser, narrow and wide, light and dark."""

import json
import re

import pytest

LOOKS = [(400, "light"), (1600, "dark")]
"""No rule of the style sheet depends on both."""


def column(page, table, header):
    """Return what stands in a column, from top to bottom, of the rows that are shown."""
    return page.evaluate(
        """([table, header]) => {
            const heads = [...document.querySelectorAll(`#${table} thead th`)];
            const at = heads.findIndex((each) => each.textContent.trim() === header);
            return [...document.querySelectorAll(`#${table} tbody tr:not([hidden])`)]
                .map((row) => row.cells[at].innerText.trim());
        }""",
        [table, header],
    )


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_it_opens_offline_without_an_error_and_fits(open_report, width, theme):
    page = open_report(width, theme)
    assert page.wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = page.evaluate(
        """() => [...document.querySelectorAll("main *")]
            .filter((node) => !node.closest(".wide, svg, .unseen, .readout, thead"))
            .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
            .map((node) => node.outerHTML.slice(0, 80))"""
    )
    assert overflowing == []
    assert page.evaluate("getComputedStyle(document.body).fontSize") == "15px"


def test_a_click_on_a_header_sorts_and_another_turns_round(open_report):
    page = open_report()
    page.click("#by-recipe thead button:text-is('best %')")
    numbers = [text.split()[0] for text in column(page, "by-recipe", "best %")]
    known = [float(text) for text in numbers if text != "-"]
    assert known == sorted(known)
    assert numbers[len(known) :] == ["-"] * (len(numbers) - len(known))
    page.click("#by-recipe thead button:text-is('best %')")
    numbers = [text.split()[0] for text in column(page, "by-recipe", "best %")]
    assert [float(text) for text in numbers[: len(known)]] == known[::-1]
    assert numbers[-1] == "-"
    assert page.get_attribute("#by-recipe thead th:has-text('best %')", "aria-sort") == "descending"


def test_a_narrow_page_sorts_by_a_list(open_report):
    page = open_report(400)
    page.select_option("[data-sorts=by-recipe]", label="images /s")
    rates = [text.split()[-1] for text in column(page, "by-recipe", "recipe")]
    speeds = [float(t.split()[0]) for t in column(page, "by-recipe", "images /s") if t[0] != "-"]
    assert speeds == sorted(speeds)
    assert len(rates) == 8


def test_filters_leave_the_rows_that_match(open_report):
    page = open_report()
    page.fill("[data-filters=by-run]", "fp16 lr=0.4")
    assert set(column(page, "by-run", "optimizer.lr")) == {"0.4"}
    assert len(column(page, "by-run", "recipe")) == 3
    assert page.text_content("[data-count-of=by-run]") == "3 of 24 rows"
    page.fill("[data-filters=by-run]", "")
    page.select_option("[data-status-of=by-run]", "crashed")
    said = column(page, "by-run", "status")
    assert len(said) == 2
    assert said[0].split(maxsplit=1) == ["crashed", "killed by SIGSEGV"]


def test_the_nonfinite_run_is_shown_with_its_step_and_in_the_curves(open_report):
    page = open_report()
    page.select_option("[data-status-of=by-run]", "nonfinite")
    assert column(page, "by-run", "non-finite at step") == ["12"] * 6
    assert page.locator("#charts [data-nonfinite='12']").count() >= 6
    assert "not finite at step 12" in page.get_attribute("#charts svg >> nth=0", "aria-label")


def test_all_charts_share_what_is_pointed_at(open_report):
    page = open_report()
    page.locator("#charts .plot").first.hover(position={"x": 200, "y": 100})
    places = page.locator("#charts figcaption span").all_text_contents()
    assert len(places) == 6
    assert len(set(places)) == 1
    assert re.fullmatch(r"at step \d+", places[0])
    assert page.locator("#charts .cursor").count() == 6
    page.locator("#charts .plot").first.press("Home")
    assert page.locator("#charts figcaption span").last.text_content() == "at step 0"


def test_a_row_can_be_taken_out_of_the_charts(open_report):
    page = open_report()
    before = page.locator("#charts .curve").count()
    page.locator("#legend button").first.click()
    assert page.locator("#charts .curve").count() == before - 3 * 6
    assert page.locator("#legend button").first.get_attribute("aria-pressed") == "false"


def test_two_runs_can_be_set_side_by_side(open_report):
    page = open_report()
    page.select_option("#diff-from", index=0)
    page.select_option("#diff-to", index=1)
    assert page.locator("#diff tbody th").all_text_contents() == ["recipe"]
    page.select_option("#diff-to", index=0)
    assert "the same settings" in page.text_content("#diff tbody")


def test_the_theme_can_be_chosen(open_report):
    page = open_report(theme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != light


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_it_passes_the_accessibility_checks_of_axe(open_report, width, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    found = axe.Axe().run(open_report(width, theme))
    assert found.violations_count == 0, found.generate_report()


def test_a_crowd_of_rows_in_one_place_does_not_hang_the_page(open_report, report):
    """Labels make way for each other, whatever their places round to."""
    start, end = '<script type="application/json" id="data">', "</script>"
    before, _, rest = report.read_text().partition(start)
    content, _, after = rest.partition(end)
    data = json.loads(content)
    drawn = next(arm for arm in data["arms"] if arm["score"] is not None)
    data["arms"] += [
        {**drawn, "score": 0.4 + number / 7e3, "seconds": 40 + number / 7} for number in range(60)
    ]
    report.write_text(before + start + json.dumps(data) + end + after)
    page = open_report(1600)
    assert page.wrong == []
    places = page.eval_on_selector_all(
        "#tradeoff svg text[y]", "texts => texts.map((text) => +text.getAttribute('y'))"
    )
    assert len(places) > 15
    assert max(places) <= 300
    covered = page.evaluate(
        """() => {
            const boxes = [...document.querySelectorAll("#tradeoff svg text")]
                .map((text) => text.getBBox());
            return [...document.querySelectorAll("#tradeoff svg circle")]
                .map((circle) => [circle.cx.baseVal.value, circle.cy.baseVal.value])
                .filter(([x, y]) => boxes.some((box) =>
                    box.x < x && x < box.x + box.width && box.y < y && y < box.y + box.height))
                .length;
        }"""
    )
    assert covered == 0


@pytest.mark.parametrize("width", [400, 1600])
def test_the_values_below_a_chart_are_not_cut_and_all_come_on_demand(open_report, width):
    page = open_report(width)
    chart = page.locator("#charts figure").first
    cells = page.evaluate("DATA.cells.filter((cell) => cell.curves.train_loss).length")
    assert cells > 12
    rows = chart.locator(".readout li")
    assert rows.count() == 12
    assert rows.last.bounding_box()["height"] > 0
    assert chart.locator(".readout").evaluate("(node) => node.scrollHeight <= node.clientHeight")
    chart.get_by_role("button", name=f"all {cells} rows").click()
    assert rows.count() == cells
    assert chart.locator(".readout").evaluate("(node) => node.scrollHeight <= node.clientHeight")
    chart.get_by_role("button", name="first 12 rows").click()
    assert rows.count() == 12
    assert page.wrong == []


def test_the_share_of_unchanged_weights_is_explained_at_its_chart(open_report):
    page = open_report()
    explained = page.locator("#charts figure", has=page.locator("p.hint"))
    assert [each.split(",")[0] for each in explained.locator("figcaption").all_inner_texts()] == [
        "Weights that a step left unchanged\nlast value"
    ]
