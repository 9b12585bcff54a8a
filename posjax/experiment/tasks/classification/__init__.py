"""Text classification: a label for each text."""
