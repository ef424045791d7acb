"""Transformers opened at their feed-forward layers."""
