"""Recording of runs: rows of launches and commands, tables and their columns, summaries and files."""
