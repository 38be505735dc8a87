"""Pages of the site from files in the repository's root: the README is the first page.

Links to files of the repository become links to pages of the site. If the site has no page for a
file, the link becomes plain text.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "README.zh.md": "index.zh.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
TEXT, TARGET = r"\[((?:[^\[\]]|\[[^\]]*\])*)\]", r"\((?!https?:|#|mailto:)([^)#\s]*)(#[^)\s]*)?\)"
LINK = re.compile(rf"(?<!!){TEXT}{TARGET}")
PICTURE = re.compile(r"(!\[[^\]]*\]\(|\b(?:src|srcset)=\")docs/")


def pages() -> dict[str, str]:
    """Return the pages by path."""
    found = {page: ROOT / source for source, page in PAGES.items()}
    return {
        # On the site, Chinese pages are in a subfolder, but the pictures are not.
        page: relinked(path.read_text(), pictures="../" if page.endswith(".zh.md") else "")
        for page, path in found.items()
        if path.exists()
    }


def relinked(text: str, *, pictures: str = "") -> str:
    """Return the text of a page with its links changed for the site.

    Args:
        text: The page, in Markdown.
        pictures: The relative path from the page on the site to the folder above `images`.
    """

    def of_the_site(link: re.Match[str]) -> str:
        said, target, anchor = link[1], link[2], link[3] or ""
        if target in PAGES:
            # Each language has its own site, and the header of the site switches the language.
            return f"[{said}]({PAGES[target].replace('.zh.md', '.md')}{anchor})"
        if target.startswith("docs/"):
            return f"[{said}]({target.removeprefix('docs/')}{anchor})"
        return said

    return PICTURE.sub(rf"\1{pictures}", LINK.sub(of_the_site, text))
