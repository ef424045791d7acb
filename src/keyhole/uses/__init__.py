"""What the memories are good for."""
