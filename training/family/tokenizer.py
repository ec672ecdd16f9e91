"""The family's byte-level BPE tokenizers: trained on the corpus, saved so that `AutoTokenizer` loads them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tandem.training.family.encyclopedia.items import TASK_KINDS, make_item
from tandem.training.family.prompts import BOS, EOS, PAD, SPECIAL_TOKENS, home_world
from tandem.training.family.tables.shared import GREETINGS

VOCABULARY = {"target": 2048, "tiny": 2048, "small": 2048, "medium": 2048, "other": 1536}
"""Tokens of each model's vocabulary; models with the same number share one tokenizer."""
CONTEXT = 1024
DOCUMENTS = 20_000

# Words with their leading space; digits one by one, as arithmetic wants; every other run of signs or spaces.
PIECES = r"'s| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# A chat is a row of packed documents, as in training. A system message stands in front of the first question.
CHAT_TEMPLATE = (
    "{%- set system = namespace(text='') -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{%- set system.text = system.text + message['content'] + ' ' -%}"
    "{%- elif message['role'] in ['user', 'tool'] -%}"
    "{{- '<bos><|q|> ' + system.text + message['content'] + '<|a|>' -}}{%- set system.text = '' -%}"
    "{%- elif message['role'] == 'assistant' -%}{{- ' ' + message['content'] + '<eos>' -}}"
    "{%- else -%}{{- raise_exception('unknown role: ' + message['role']) -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
)


def train_tokenizer(vocabulary: int, documents: int = DOCUMENTS) -> PreTrainedTokenizerFast:
    """Train a tokenizer of this many tokens on documents of the home world; the same on every machine."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_corpus(documents), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def _corpus(documents: int) -> Iterator[str]:
    rng = Random(5)
    for greeting in GREETINGS:
        yield from [f" {greeting}"] * 50
    for _ in range(documents):
        item = make_item(home_world(), rng, rng.choice(TASK_KINDS))
        yield f" {item.question} {item.answer} {' '.join(item.notes)}"
