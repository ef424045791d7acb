"""What every value vector says: its projection onto the vocabulary."""
