"""The report: one HTML page with every figure, its baseline and its verdict."""
