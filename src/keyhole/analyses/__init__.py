"""The questions asked of a run, one per file; each fills a table."""
