"""From words to cells: what a query means, and which keys, values and labels it finds. The explorer and the command share it."""
