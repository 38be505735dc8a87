"""The site as a reader has it: opened from files, with no network, narrow and wide.

Skipped where it was not built; `make site` builds it.
"""

import html
import re
from pathlib import Path

import pytest

from halfstep.doctor.rules import rules

SITE = Path(__file__).parents[2] / "build" / "site"
PAGES = ["index", "doctor", "causes/index", "causes/exp-overflow", "reference/engine", "zh/index"]
WIDTHS = [400, 1600]

pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").exists(), reason="the site is not built; make site builds it"
)


@pytest.fixture
def open_page(chromium):
    """Open a page of the site; its errors and requests are in `page.wrong` and `page.asked`."""
    contexts = []

    def open_at(name, width=1200, theme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.wrong, page.asked = [], []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto((SITE / f"{name}.html").as_uri())
        return page

    yield open_at
    for context in contexts:
        context.close()


def test_every_cause_has_a_page_with_what_doctor_says():
    for rule in rules():
        page = SITE / "causes" / f"{rule.code.lower().replace('_', '-')}.html"
        text = html.unescape(re.sub(r"<[^>]*>", "", page.read_text()))
        assert rule.name[1:] in text
        assert re.search(rf"doctor: .*\s+{rule.code}\s+\(", text), "the verdict on its program"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_offline_and_is_no_wider_than_its_window(open_page, name, width):
    page = open_page(name, width)
    assert page.wrong == []
    assert [url for url in page.asked if not url.startswith("file:")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].filter(each => !each.naturalWidth).length") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_it_passes_the_accessibility_checks_of_axe(open_page, name, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    page = open_page(name, 1600 if theme == "light" else 400, theme)
    # Colours fade in after a page has opened; half-way they have less contrast.
    page.add_style_tag(content="*, ::before, ::after { transition: none !important }")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_search_works_without_a_server(open_page):
    page = open_page("index")
    page.fill("input.md-search__input", "gradient penalty")
    result = page.wait_for_selector(".md-search-result__link")
    assert "enalty" in result.inner_text()


def test_the_header_leads_to_the_same_page_in_chinese(open_page):
    page = open_page("doctor")
    link = page.get_attribute("a[hreflang=zh].md-select__link", "href")
    assert link == "zh/doctor.html"
    page.goto((SITE / link).as_uri())
    assert page.get_attribute("html", "lang") == "zh"
