"""Folders of tokenizers as Hugging Face has them, small, of the kinds that models have."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
  {%- set system = messages[0].content | trim %}
  {%- set messages = messages[1:] %}
{%- else %}
  {%- set system = 'Be brief.' %}
{%- endif %}
{{- '<|start|>system<|end|>\\n\\n' + system }}
{%- if tools is not none %}
  {{- '\\nTools: ' + (tools | tojson(indent=2)) }}
{%- endif %}
{{- '<|eot|>' }}
{%- for one in messages %}
  {{- '<|start|>' + one['role'] + '<|end|>\\n\\n' + one['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

CHATML = """{%- set ns = namespace(last=0) %}
{%- for one in messages %}
  {%- if one.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for one in messages %}
  {%- if one.content is not defined %}{% continue %}{% endif %}
  {%- if one.role == 'assistant' and loop.index0 < ns.last %}
    {%- set content = one.content.split('</think>')[-1].lstrip('\\n') %}
  {%- else %}
    {%- set content = one.content %}
  {%- endif %}
  {{- '<|start|>' + one.role + '\\n' }}
  {%- generation %}{{ content }}{% endgeneration %}
  {{- '<|eot|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|start|>assistant\\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
  {%- endif %}
{%- endif %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
{{ raise_exception('There is no role system') }}
{%- endif %}
{%- for one in messages %}
    {%- if (one['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- set role = 'model' if one['role'] == 'assistant' else one['role'] %}
    {{ '<|start|>' + role + '
' + (one['content'] if one['content'] is string else one['content'][0]['text']) | trim + '<|eot|>
' }}
{%- endfor %}
{% if add_generation_prompt %}
    {{ '<|start|>model
' }}
{% endif %}
"""


def write(folder, backend=None, **files):
  """A folder with a tokenizer, and files of JSON by their names without the ending."""
  folder.mkdir(exist_ok=True, parents=True)
  if backend is not None:
    (folder / 'tokenizer.json').write_text(backend.to_str(), 'utf-8')
  for name, value in files.items():
    (folder / f'{name}.json').write_text(json.dumps(value), 'utf-8')
  return folder


def byte_pairs(folder, template=None, **files):
  """Byte-level BPE as in GPT-2 and Llama 3, trained on two lines, with tokens of conversations."""
  backend = tokenizers.Tokenizer(models.BPE())
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  special = ['<|begin|>', '<|start|>', '<|end|>', '<|eot|>', '<|pad|>']
  trainer = trainers.BpeTrainer(
    vocab_size=280,
    special_tokens=special,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  backend.train_from_iterator(['the cat sat on the mat', 'the dog sat on the log'], trainer)
  backend.post_processor = processors.TemplateProcessing(
    single='<|begin|> $A', special_tokens=[('<|begin|>', 0)]
  )
  pad = {'__type': 'AddedToken', 'content': '<|pad|>'}
  config = {'bos_token': '<|begin|>', 'eos_token': '<|eot|>', 'pad_token': pad}
  config |= {} if template is None else {'chat_template': template}
  return write(folder, backend, **{'tokenizer_config': config, **files})


def word_pieces(folder, **files):
  """WordPiece as in BERT."""
  words = '[PAD] [UNK] [CLS] [SEP] [MASK] the cat ##s sat un ##believ ##able , . ! 猫 ##t'
  backend = tokenizers.Tokenizer(
    models.WordPiece({word: i for i, word in enumerate(words.split())}, unk_token='[UNK]')
  )
  backend.normalizer = normalizers.BertNormalizer()
  backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  backend.decoder = decoders.WordPiece(cleanup=False)
  backend.add_special_tokens(words.split()[:5])
  backend.post_processor = processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
  backend.enable_truncation(4)  # of what BERT reads; transformers does not by default, either
  backend.enable_padding(length=12)
  config = {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'unk_token': '[UNK]'}
  config |= {'mask_token': '[MASK]', 'clean_up_tokenization_spaces': True}
  return write(folder, backend, **{'tokenizer_config': config, **files})


def pieces(folder, **files):
  """Unigram over pieces that begin with a mark for a space, as SentencePiece has them."""
  scores = {'<pad>': 0.0, '</s>': 0.0, '<unk>': 0.0, '▁': -2.0, '▁the': -3.0, '▁cat': -4.0}
  scores |= {'▁c': -5.0, 'at': -5.0, 's': -5.5, 'a': -6.0, 't': -6.0, '▁sat': -4.0, '猫': -7.0}
  scores |= {f'<0x{byte:02X}>': -20.0 for byte in range(256)}
  backend = tokenizers.Tokenizer(models.Unigram([*scores.items()], 2, byte_fallback=True))
  backend.pre_tokenizer = pre_tokenizers.Metaspace()
  backend.decoder = decoders.Sequence(
    [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1)]
  )
  backend.add_special_tokens(['<pad>', '</s>', '<unk>'])
  backend.post_processor = processors.TemplateProcessing(
    single='$A </s>', special_tokens=[('</s>', 1)]
  )
  config = {'eos_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>'}
  config |= {'extra_special_tokens': ['<extra>'], 'image_token': '<image>'}  # not in tokenizer.json
  return write(folder, backend, **{'tokenizer_config': config, **files})
