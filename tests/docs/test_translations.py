"""Pages in Chinese: the commands and figures of the English ones, and links that lead somewhere."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.zh.md"), *ROOT.glob("docs/**/*.zh.md")])
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# A number with what belongs to it: a sign, thousands, decimals, an exponent.
FIGURE = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# Figures that English writes as words.
WORDS = {"ten": "10", "twelve": "12", "sixteen": "16", "twenty": "20", "forty": "40"}
WORDS |= {"eighty": "80", "hundredth": "100", "November": "11"}
COMMENT = re.compile(r" *# .*$", re.MULTILINE)
COMMAND = re.compile(r"`(?:halfstep|python|torchrun|pip|make)\s[^`]*`")


def english(page: Path) -> Path:
    """Return the page that another one is a translation of."""
    return page.with_name(page.name.replace(".zh.md", ".md"))


def prose(page: Path) -> str:
    """Return a page without its fenced blocks and addresses."""
    return re.sub(r"\]\([^)]*\)|https?://\S+", "", FENCED.sub("", page.read_text()))


def figures(text: str) -> Counter[str]:
    """Return the figures of a text, each as often as it is there."""
    return Counter(figure.rstrip(",") for figure in FIGURE.findall(text))


def tables(page: Path) -> list[Counter[str]]:
    """Return the figures of each row of each table, in their order; words for numbers count too."""
    rows = [line for line in prose(page).splitlines() if line.startswith("|")]
    return [figures(re.sub(r"\w+", lambda word: WORDS.get(word[0], word[0]), row)) for row in rows]


def code(page: Path) -> list[str]:
    """Return the fenced blocks of a page, those of bash and Python without their comments."""
    return [
        COMMENT.sub("", block) if block.startswith(("```bash", "```python")) else block
        for block in FENCED.findall(page.read_text())
    ]


def test_there_are_translations():
    assert len(PAGES) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
class TestTranslation:
    def test_fenced_blocks_are_the_same(self, page):
        assert code(page) == code(english(page))

    def test_tables_have_the_same_figures(self, page):
        assert tables(page) == tables(english(page))

    def test_prose_has_the_same_figures(self, page):
        # Numbers of one digit may be words in one of the languages.
        here, there = (
            {figure for figure in figures(prose(each)) if len(figure.strip("+-")) > 1}
            for each in (page, english(page))
        )
        said = re.findall(r"\w+", english(page).read_text())
        words = {WORDS[word] for word in said if word in WORDS}
        assert here - there - words == set(), "in the translation alone"
        assert there - here == set(), "in English alone"

    def test_commands_are_the_same(self, page):
        # Wrapped lines may break a command.
        here, there = (
            {" ".join(each.split()) for each in COMMAND.findall(prose(page))}
            for page in (page, english(page))
        )
        assert here == there

    def test_links_lead_somewhere(self, page):
        targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCED.sub("", page.read_text()))
        local = [target for target in targets if "://" not in target]
        assert [each for each in local if not (page.parent / each).exists()] == []

    def test_links_to_pages_in_english_say_so(self, page):
        for line in FENCED.sub("", page.read_text()).splitlines():
            if page.name == "README.zh.md" and line.startswith("[English]"):
                continue
            for target in re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", line):
                translation = (page.parent / target).with_suffix(".zh.md")
                assert not translation.exists(), f"{target}: there is {translation.name}"
                assert target.endswith(".zh.md") or "英文" in line, (
                    f"{target} is in English: say so"
                )

    def test_no_line_breaks_between_two_characters(self, page):
        # GitHub renders a line break as a space, which Chinese does not have.
        lines = FENCED.sub("", page.read_text()).splitlines()
        pairs = pairwise(lines)
        han = r"[\u4e00-\u9fff]"
        broken = [
            one
            for one, other in pairs
            if re.search(f"{han}$", one) and re.match(rf"\s*{han}", other) and one[0] != "#"
        ]
        assert broken == []


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_a_readme_is_read_in_a_few_minutes(name):
    assert len((ROOT / name).read_text().splitlines()) <= 110
