"""Checkpoints of other libraries as language models: measured, and trained further."""
