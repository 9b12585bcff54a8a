"""Chat templates: from messages to the text of a conversation, as a checkpoint was trained on it.

A template is a program in the language of jinja2 that comes with a checkpoint, and is not trusted.
It runs in jinja2's sandbox, which keeps it away from Python's internals and from changing what it
is given, and sees texts, numbers, lists and dicts alone, which are copies. What templates expect
besides, beyond jinja2's own, is what transformers gives them: `break` and `continue` in loops, the
block `generation`, which marks what a model says, the filter `tojson` without escapes for HTML, and
the functions `raise_exception` and `strftime_now`.
"""

import datetime
import functools
import importlib.metadata
import json
import re
from collections.abc import Mapping
from typing import Any

from posjax.arguments import shown

_SAFE = (3, 1, 6)  # in earlier versions of jinja2, templates can leave the sandbox


def render(template: str, variables: Mapping[str, Any]) -> str:
  """The text that a template writes.

  Args:
    template: the template.
    variables: what it may name.

  Raises:
    ValueError: if the template is wrong, reaches for what the sandbox does not allow, or refuses
      what it is given; the sentence ends with its own words.
    TypeError: if a variable is made of other things than texts, numbers, lists and dicts.
    ImportError: if jinja2 is not installed, or too old for a safe sandbox.

  Example:
    >>> render(
    ...   '{% for one in messages %}[{{ one.role }}] {% endfor %}', {'messages': [{'role': 1}]}
    ... )
    '[1] '
    >>> render('{{ x.__class__.__mro__ }}', {'x': 1})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: access to attribute '__class__' of 'int' object is unsafe.
  """
  environment = _environment()
  given = _plain(variables, 'The variables of a chat template', 0)
  try:
    return environment.from_string(template).render(given)
  except Exception as error:  # a template can fail as any program can
    words = ' '.join(str(error).split())
    kind = type(error).__name__
    raise ValueError(words if _is_of_jinja(error) and words else f'{kind}: {words}') from error


def _is_of_jinja(error: Exception) -> bool:
  return type(error).__module__.startswith('jinja2')


def _plain(value: Any, name: str, depth: int) -> Any:
  """A copy that is made of Python's own types."""
  if depth > 100:
    raise ValueError(f'{name} must be nested at most 100 deep.')
  if value is None:
    return None
  for kind in (bool, int, float, str):
    if isinstance(value, kind):
      return kind(value)
  if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
    return {str(key): _plain(each, name, depth + 1) for key, each in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(each, name, depth + 1) for each in value]
  raise TypeError(
    f'{name} must be texts, numbers, and lists and dicts of them, but got {shown(value)}.'
  )


@functools.cache
def _environment() -> Any:
  try:
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace
  except ImportError as error:
    raise ImportError("Chat templates need jinja2: pip install 'posjax[checkpoints]'.") from error
  version = importlib.metadata.version('jinja2')
  if tuple(map(int, re.findall(r'\d+', version)[:3])) < _SAFE:
    raise ImportError(
      f'Chat templates need jinja2 3.1.6 or later, whose sandbox is safe, but found {version}: '
      "pip install --upgrade 'jinja2>=3.1.6'."
    )

  class Generation(Extension):
    """`{% generation %} .. {% endgeneration %}`: its content, as it is."""

    tags = {'generation'}  # noqa: RUF012

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
      return nodes.Scope(body).set_lineno(line)

  class PublicNamespace(Namespace):
    """`namespace(..)` of jinja2, whose attributes must not begin with an underscore."""

    def __init__(self, *args, **kwargs):
      super().__init__()
      for name, value in dict(*args, **kwargs).items():
        self[name] = value

    def __setitem__(self, name, value):
      if str(name).startswith('_'):
        raise SecurityError(f'the name {name!r} in a namespace is unsafe.')
      super().__setitem__(name, value)

  def refuse(message):
    raise TemplateError(str(message))

  def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
      value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )

  def now(form):
    return datetime.datetime.now().strftime(form)

  def make_dict(*args, **kwargs):
    return dict(*args, **kwargs)

  environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, 'jinja2.ext.loopcontrols']
  )
  environment.filters['tojson'] = to_json
  given: dict[str, Any] = environment.globals
  given |= {'raise_exception': refuse, 'strftime_now': now}
  given |= {'dict': make_dict, 'namespace': PublicNamespace}
  return environment
