"""Translation: sentences of one language into another."""
