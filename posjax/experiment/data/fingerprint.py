"""A hash of all that was read, so that two runs can tell whether they saw the same data."""

import hashlib
from collections.abc import Iterable


def fingerprint(train: Iterable[bytes], held_out: Iterable[bytes]) -> str:
  """SHA-256 of two lists of documents, their order and their borders included.

  Args:
    train: documents.
    held_out: documents.

  Returns:
    64 hexadecimal digits.
  """
  digest = hashlib.sha256()
  for name, documents in ((b'train', train), (b'held_out', held_out)):
    digest.update(name)
    for document in documents:
      # The length goes first, so that moving a border between two documents is seen.
      digest.update(len(document).to_bytes(8, 'little') + document)
  return digest.hexdigest()
