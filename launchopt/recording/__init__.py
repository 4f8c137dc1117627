"""What happened in a run, as columns, files and summaries."""
