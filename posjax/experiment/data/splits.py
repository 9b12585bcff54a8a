"""What the files of a folder are for, by words in their names.

There is no word for tests: what is to stay unseen until the end is read by nobody here.
"""

TRAIN = frozenset({'train'})
HELD_OUT = frozenset({'dev', 'val', 'valid', 'validation'})
