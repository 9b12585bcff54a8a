"""Comparing schemes: a grid of runs, their numbers with error bars, and one page that shows them."""
