"""A few pairs that look like captions, for the tests of this folder."""

from posjax.experiment.tasks.translation.data import Pair, Parallel

_PAIRS = """
Ein Mann mit einem Hut geht über die Straße.|A man in a hat is crossing the street.
Zwei Hunde spielen im Schnee.|Two dogs are playing in the snow.
Eine Frau liest ein Buch, während sie wartet.|A woman reads a book while she is waiting.
Drei Kinder laufen über die Wiese.|Three children are running across the meadow.
Ein Junge mit einem roten Ball springt ins Wasser.|A boy with a red ball jumps into the water.
Der Mann und die Frau tanzen auf der Straße.|The man and the woman are dancing in the street.
Ein Hund läuft mit einem Ball durch das Wasser.|A dog runs through the water with a ball.
Die Kinder spielen mit einem großen Hund.|The children are playing with a large dog.
Eine alte Frau verkauft Blumen auf dem Markt.|An old woman is selling flowers at the market.
Männer in gelben Westen arbeiten an einem Dach.|Men in yellow vests are working on a roof.
Ein Mädchen schläft auf einem Stuhl im Garten.|A girl is sleeping on a chair in the garden.
Der Junge wirft den Ball, und der Hund fängt ihn.|The boy throws the ball, and the dog catches it.
"""

TRAIN = tuple(
  Pair(*line.split('|'), f'train.de, line {number}')
  for number, line in enumerate(_PAIRS.strip().split('\n'), start=1)
)

# Sentences that a careless way to spell would change, or refuse.
ODD = (
  ' Ein Mann  mit   Hut. ',
  'Mann',
  ' ',
  '   ',
  '\tTab\t',
  '漢字 Ω ≠ ω 🙂',
  '\u2581 is no space \u2581',
  '\u2581',
  'e\u0301 ﬁ \u2028 \x00 \ufeff',
  'ein\rMann',
  '',
  'Hund ' * 2000,
  'x' * 9000,
)


def parallel(train=TRAIN, held_out=TRAIN[:2], **changes):
  """What `read` makes of a folder."""
  made = Parallel('file:x', 'de', 'en', tuple(train), tuple(held_out), 'val.de', {}, '0' * 64)
  return made._replace(**changes)
