"""Pages of the site that are files of the repository's root: the README is the first page.

Their links are those of the repository; here they become those of the site. A link to a file that
the site does not have becomes its text.
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
        # A page in Chinese is in a folder of its own; the pictures are not.
        page: relinked(path.read_text(), pictures="../" if page.endswith(".zh.md") else "")
        for page, path in found.items()
        if path.exists()
    }


def relinked(text: str, *, pictures: str = "") -> str:
    """Return a page of the root with the links that it has on the site.

    Args:
        text: The page, in Markdown.
        pictures: The way from the page on the site to the folder that holds the pictures' folder.
    """

    def of_the_site(link: re.Match[str]) -> str:
        said, target, anchor = link[1], link[2], link[3] or ""
        if target in PAGES:
            # Each language has its own site, and its switch in the header.
            return f"[{said}]({PAGES[target].replace('.zh.md', '.md')}{anchor})"
        if target.startswith("docs/"):
            return f"[{said}]({target.removeprefix('docs/')}{anchor})"
        return said

    return PICTURE.sub(rf"\1{pictures}", LINK.sub(of_the_site, text))
