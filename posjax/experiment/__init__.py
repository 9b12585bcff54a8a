"""Experiments with posjax: tasks, models, data and training."""
