"""Reports of results: pages, screens, tables in Markdown."""
