"""One file for each way to compute attention, or for each model that trains.

A file has `inputs(spec)`, which makes what is not counted as memory, and `build(spec, inputs)`,
which returns `Built`. Either raises `Unable` where it cannot do what is asked, `Absent` if no case
of its can be done here. A file is imported by the processes that run it alone, so that a library
that is missing costs its own lines only.
"""
