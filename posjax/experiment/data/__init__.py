"""Data by kind: a folder for each, whose `read(expression, ...)` reads what one line names.

The kinds are `text` (raw documents for language models), `labelled` (texts with a label each),
`parallel` (sentences with their translations), `columns` (sentences with a tag for each token),
`pairs` (pairs of sentences with a label each), `trees` (sentences with a constituency tree each)
and `questions` (questions with answers, for algorithms). An expression is `file:PATH`, `tfds:NAME`,
`synthetic:NAME` or what else the kind's docstring lists. `expression.parse` cuts all of them, and
words the error for what has no such form.

What belongs to one task alone is in its folder. Here is
what several kinds share: lines of files, and a `folder` of files of them; names of splits,
TensorFlow Datasets, words with their `spelling` and their vectors, batches of few widths
(`buckets`), also of one sentence a row (`sentences`), and the fingerprint of what was read.
"""
