"""Pruning: which cells a model can do without, and what becomes of it."""
