"""Language modelling: the next token of a text, with or without a memory of earlier segments."""
