"""The purpose of each file of a folder, told by words in its name.

There is no word for tests: what is to stay unseen until the end is read by nobody here.
"""

TRAIN = frozenset({'train'})
HELD_OUT = frozenset({'dev', 'val', 'valid', 'validation'})
