"""The saved tokenizers: exact round trips, one bos, and chats that look like packed documents."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tandem.engine.family import EXPANDERS, NAMES, path
from tandem.training.family.prompts import SPECIAL_TOKENS, answer_prompt
from tandem.training.family.tokenizer import VOCABULARY, train_tokenizer

TOKENIZERS = {name: AutoTokenizer.from_pretrained(path(name)) for name in NAMES}
every_tokenizer = pytest.mark.parametrize("name", NAMES)


@every_tokenizer
@given(text=st.text(max_size=80))
def test_round_trip_is_exact(name, text):
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@every_tokenizer
def test_has_the_announced_size_and_tokens(name):
    tokenizer = TOKENIZERS[name]
    assert len(tokenizer) == VOCABULARY[name] == len(tokenizer.get_vocab())
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))


def test_expanders_have_the_targets_tokenizer_and_other_has_not():
    target = TOKENIZERS["target"].get_vocab()
    assert all(TOKENIZERS[name].get_vocab() == target for name in EXPANDERS)
    assert TOKENIZERS["other"].get_vocab() != target


@every_tokenizer
def test_a_rendered_chat_is_a_sequence_of_documents(name):
    tokenizer = TOKENIZERS[name]
    chat = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "She."},
        {"role": "user", "content": "Why?"},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><|q|> Who?<|a|> She.<eos>" + answer_prompt("Why?")
    ids = tokenizer(text)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 2
    assert ids == tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


@every_tokenizer
def test_a_system_message_stands_in_front_of_the_first_question(name):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    text = TOKENIZERS[name].apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><|q|> Be brief. Who?<|a|>"


def test_an_unknown_role_is_an_error():
    with pytest.raises(Exception, match="unknown role: oracle"):
        TOKENIZERS["target"].apply_chat_template([{"role": "oracle", "content": "x"}], tokenize=False)


def test_training_is_deterministic():
    first, second = (json.loads(train_tokenizer(400, 200).backend_tokenizer.to_str()) for _ in range(2))
    assert first == second


@pytest.mark.slow
@every_tokenizer
def test_the_saved_tokenizer_is_the_one_that_training_makes(name):
    made = json.loads(train_tokenizer(VOCABULARY[name]).backend_tokenizer.to_str())
    saved = json.loads(TOKENIZERS[name].backend_tokenizer.to_str())
    assert made["model"] == saved["model"]
