"""Hook of mkdocs.yml: take every page from where it lies in the repository.

So a link between two pages is the same on the site and in a checkout, and no page exists twice. README.md becomes the
first page of the site.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCES = (
    "*.md",
    "LICENSE",
    "docs/*.md",
    "docs/*.css",
    "docs/examples/*/*.toml",
    "docs/examples/*/*/*.py",
    "docs/*.ipynb",
    "scripts/README.md",
    "outputs/reference/*.md",
    "outputs/reference/launchers/*.log",
    "outputs/reference/gpu/*/*.md",
    "outputs/reference/gpu/*.svg",
    "outputs/reference/gpu/*.png",
    "launchopt/*/base.py",
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the theme's files, and those of SOURCES under their paths in the repository."""
    root = Path(config.config_file_path).parent
    pages = {str(path.relative_to(root)) for pattern in SOURCES for path in root.glob(pattern)}
    for name in sorted(pages):
        files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    return Files([each for each in files if each.src_dir != config.docs_dir])
