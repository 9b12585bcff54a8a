"""Sentence pairs: a label for a premise and a hypothesis."""
