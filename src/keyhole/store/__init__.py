"""The run directory: its files, and what is read from them."""
