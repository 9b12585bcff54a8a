"""Comparing schemes: a grid of runs, numbers with error bars, and one page that shows them."""
