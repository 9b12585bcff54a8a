"""Constituency parsing: a tree for each sentence."""
