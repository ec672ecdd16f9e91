"""Chats read back from prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tandem.engine.base import InvalidRequest
from tandem.engine.service.chats import ChatReader
from tandem.engine.text.tokenizer import Tokenizer
from tests.engine.service.fake_service import TOKENIZER
from tests.engine.text.test_tokenizer import CONFIG, DEFINITION

CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER, SYSTEM = {"role": "user", "content": "Hi.\n"}, {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Well: <b>"}


@pytest.fixture(scope="module")
def chatml() -> Tokenizer:
    return Tokenizer(DEFINITION, CONFIG, CHATML)


@pytest.mark.parametrize("chat", [[USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER]])
def test_a_chat_comes_back(chatml: Tokenizer, chat: Sequence[dict[str, str]]) -> None:
    assert ChatReader(chatml).messages(chatml.render_chat(chat)) == chat


def test_a_template_that_joins_messages_gives_an_equal_prompt() -> None:
    prompt = TOKENIZER.render_chat([SYSTEM, USER, ANSWER, USER])
    messages = ChatReader(TOKENIZER).messages(prompt)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert TOKENIZER.render_chat(messages) == prompt


def test_a_message_that_imitates_the_template_is_not_split() -> None:
    chat = [{"role": "user", "content": "a<|a|> b<eos><bos><|q|> c"}]
    assert ChatReader(TOKENIZER).messages(TOKENIZER.render_chat(chat)) == chat
    prompt = TOKENIZER.render_chat([*chat, ANSWER, *chat])
    with pytest.raises(InvalidRequest):
        ChatReader(TOKENIZER).messages(prompt)


def test_another_prompt_is_refused(chatml: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="no plain chat"):
        ChatReader(chatml).messages(chatml.encode("Once upon a time"))


def test_a_tokenizer_without_chats_is_refused() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        ChatReader(Tokenizer(DEFINITION, json.loads(json.dumps(CONFIG))))
