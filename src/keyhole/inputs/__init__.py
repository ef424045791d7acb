"""Sources and formats of text, turned into units."""
