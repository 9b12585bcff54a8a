"""Tagging: a tag for each token, and the entities that the tags name."""
