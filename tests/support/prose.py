"""The text of pages around their generated tables, in one line.

In: README, pages of docs and of outputs/reference. Out: text, in which code and links are ` `.
"""

from __future__ import annotations

import re

from support.measured import REFERENCE
from support.paths import ROOT

# The text below a generated table of these marks is about the rows of its file; it is read with them, not computed.
EXPLAINED = {"docs/experts.md": "experts_kernels", "docs/quantised.md": "quantised_kernels"}


def prose(page: str) -> str:
    """The text of a page without tables, code and links, in one line."""
    return stripped((REFERENCE / page).read_text(encoding="utf-8"), r"|^\|.*?$")


def guide(page: str) -> str:
    """The text of README or of a page of docs, with the tables that are typed by hand."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if mark := EXPLAINED.get(page):
        text = re.sub(rf"(<!-- /{mark} -->).*?(?=^## |\Z)", r"\1\n", text, flags=re.S | re.M)
    return stripped(text)


def stripped(text: str, more: str = "") -> str:
    """Text without generated blocks, code, links and what `more` matches, in one line."""
    text = re.sub(rf"<!-- report:(\S+) -->.*?<!-- /report:\1 -->|```.*?```{more}", " ", text, flags=re.S | re.M)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "` `", text)
    return " ".join(text.split())
