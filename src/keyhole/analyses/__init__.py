"""The questions asked of a run, one record per file (`record.py` says what a record holds, `registry.py` lists them)."""
