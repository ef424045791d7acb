"""What a key's triggers have in common, as rules that run: found in the scanned text, scored on text they never saw."""
