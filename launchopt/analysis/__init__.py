"""Analysis of results: tables, comparisons, verdicts and profiles."""
