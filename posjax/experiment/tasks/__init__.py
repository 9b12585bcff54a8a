"""Tasks: one folder each, which holds the task, its data, its model and its metrics.

The function `task(...)` is in `task.py`; `posjax.experiment.task` finds it by the folder's name.
What several tasks share is in `posjax.models`, `posjax.experiment.data` and `posjax.experiment`.
"""
