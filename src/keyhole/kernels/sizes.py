"""Sizes that a kernel and its plain form share. No GPU library is needed to read them."""

CHUNK = 64
"""Tokens per chunk of a row of logits: the largest logits of a row are in the chunks with the largest maxima."""
