"""A run written in other forms."""
