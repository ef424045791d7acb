"""Leaks: what a model says by heart, how often that stood in its text, and which cells hold it."""
