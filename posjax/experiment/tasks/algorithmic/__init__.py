"""Algorithmic tasks: questions with one answer, judged at lengths beyond those of training."""
