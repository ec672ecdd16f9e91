"""Chat templates of real models are rendered as transformers does, but for special tokens that clients write.

templates/index.json says where each comes from. The tokenizer is the embedded family's, with the tokens that a template
writes.
"""

import hashlib
import json
import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tandem.engine import family
from tandem.engine.base import InvalidRequest
from tandem.engine.text.tokenizer import Tokenizer
from tests.effort import tried

FOLDER = Path(__file__).parent / "templates"
INDEX = json.loads((FOLDER / "index.json").read_text())
NAMES = [entry["file"].removesuffix(".jinja") for entry in INDEX]
DEFINITION = json.loads((family.path("target") / "tokenizer.json").read_text())
NAMED = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
TOKEN = re.compile(r"<[|｜][^|｜<>{}\s]+[|｜]>|</?[a-z][a-z_]*>|\[/?[A-Z][A-Z_]+\]")
"""Names in templates that are those of special tokens."""
EXTRA = ("<unused>", "\n\n\n", "Marworth")
"""Added tokens that no template writes: a special one, white space, and a word."""


@cache
def tokenizers(name):
    """Return transformers' tokenizer and ours, with one template and the special tokens in it."""
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    definition = json.loads(json.dumps(DEFINITION))
    known = {token["content"] for token in definition["added_tokens"]}
    size = len(definition["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for number, token in enumerate(sorted({*TOKEN.findall(source), *EXTRA} - known)):
        special = re.search(r"[|｜A-Z]|unused", token) is not None and token.isascii() and token != "Marworth"
        rstrip = name.startswith("microsoft-Phi-3") and special
        definition["added_tokens"].append(
            {"id": size + number, "content": token, "special": special} | flags | {"rstrip": rstrip}
        )
    text = json.dumps(definition)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(text, NAMED)._full, chat_template=source, **NAMED
    )
    return theirs, Tokenizer(text, NAMED, source)


def call(arguments, name="weather", number="call00001"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a town; x < 3 && y > 4, or 'ever'.",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "description": "Its name."},
                "days": {"type": "integer"},
            },
            "required": ["town"],
        },
    },
}
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {
    "role": "user",
    "content": "Which town has <b>3</b> bridges [and 2 > 1 mills]?\n\n\nZürich, 東京 or Marworth?",
}
PLAIN = {"role": "user", "content": "  Which town is it?  "}
ANSWER = {"role": "assistant", "content": "Marworth."}
AGAIN = {"role": "user", "content": "Why?"}
RESULT = {"role": "tool", "content": '{"sun": true}', "tool_call_id": "call00001", "name": "weather"}
THOUGHT = {"role": "assistant", "content": "Both.", "reasoning_content": "It is A or B.", "thinking": "A?"}
CALLS = {"role": "assistant", "content": "", "tool_calls": [call({"town": "Zürich", "days": 3})]}
CHATS = {
    "asked": [ASKED],
    "plain": [PLAIN],
    "again": [ASKED, ANSWER, AGAIN],
    "thought": [PLAIN, THOUGHT, AGAIN],
    "tool": [ASKED, CALLS, RESULT],
    "tool, and on": [PLAIN, CALLS, RESULT, ANSWER, AGAIN],
    "tool without arguments": [PLAIN, CALLS | {"tool_calls": [call({})]}, RESULT],
    "two at once": [
        PLAIN,
        CALLS | {"content": "Well.", "tool_calls": [call({"town": "<b"}), call({"days": 1})]},
        RESULT,
    ],
    "with a name": [PLAIN | {"name": "Ann"}, ANSWER, AGAIN],
    "no turns": [ANSWER, ANSWER],
}
SYSTEMS = {
    "no system": lambda chat: chat,
    "system": lambda chat: [SYSTEM, *chat],
    "system within": lambda chat: [*chat, SYSTEM, AGAIN],
}
FOR_OTHER_TOOLS = {"CohereForAI-c4ai-command-r-plus-tool_use"}
"""Templates that refuse every chat without tools, and OpenAI's form of tools."""
VARIABLES = [{}, {"enable_thinking": False, "thinking": False}, {"enable_thinking": True, "thinking": True}]


def shown(tokenizer, ids):
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


def expected(theirs, chat, **variables):
    """Return transformers' text, and its refusal; a system message that the template refuses goes before the first
    user's text."""
    folded = chat
    if [message["role"] for message in chat[:2]] == ["system", "user"]:
        folded = [chat[1] | {"content": f"{chat[0]['content']}\n\n{chat[1]['content']}"}, *chat[2:]]
    refusal = ""
    for each in (chat, folded):
        try:
            text = theirs.apply_chat_template(each, tokenize=False, add_generation_prompt=True, **variables)
        except Exception as error:
            refusal = refusal or str(error)
        else:
            return text, ""
    return "", refusal


def test_the_index_lists_the_templates():
    assert {path.name for path in FOLDER.glob("*.jinja")} == {entry["file"] for entry in INDEX}
    assert len({entry["sha256"] for entry in INDEX}) >= 60
    for entry in INDEX:
        assert entry["sha256"] == hashlib.sha256((FOLDER / entry["file"]).read_bytes()).hexdigest()
        assert all(entry[key] for key in ("model", "repository", "release", "path", "licence"))


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_those_of_transformers(name):
    theirs, ours = tokenizers(name)
    if ours.chat_problem is not None:
        pytest.skip(ours.chat_problem)
    cases = [*product(CHATS, SYSTEMS, (None, [TOOL]), VARIABLES)]
    compared = 0
    for chat, system, tools, variables in tried(cases[NAMES.index(name) % 13 :: 13], cases):
        messages, given = SYSTEMS[system](CHATS[chat]), {"tools": tools, **variables}
        text, refusal = expected(theirs, messages, **given)
        if refusal:
            with pytest.raises(InvalidRequest, match=re.escape(refusal)):
                ours.render_chat(messages, given)
            continue
        ids = ours.render_chat(messages, given)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], (chat, system, given)
        assert shown(ours, ids) == text or "Phi-3" in name, "but for white space that the token takes"
        compared += 1
    assert compared or name in FOR_OTHER_TOOLS


def test_templates_that_cannot_chat():
    problems = {name: problem for name in NAMES if (problem := tokenizers(name)[1].chat_problem)}
    refused = "the model's chat template refuses these messages: 'functions' is undefined"
    assert (
        problems
        == {
            "HuggingFaceM4-Idefics3-8B-Llama3": "its chat template leaves out what the user says",  # it wants a list
            "fireworks-ai-llama-3-firefunction-v2": refused,  # it wants a text of the tools
        }
    )


PIECES = (
    "<",
    "|",
    "<|",
    "|>",
    "</",
    ">",
    "[",
    "]",
    "{{",
    "}}",
    "{% if x %}",
    "{#",
    "\\",
    '"',
    "'",
    "\n",
    " ",
    "\U000f0041",
)
texts = st.lists(
    st.integers(0, 99) | st.sampled_from(PIECES) | st.text("abé東\ue000\uf8ff\ufdd0\r\t", max_size=4),
    max_size=8,
)
"""Texts of special tokens, by number, of pieces of some, and of other signs."""


def spelt(ours, pieces, harmless=False):
    """Return a text, or one of the same length without special tokens."""
    marks = sorted(ours._marks)
    text = "".join(marks[piece % len(marks)] if isinstance(piece, int) else piece for piece in pieces)
    return re.sub(r"\S", "x", text) if harmless else text


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=tried(2, 60))
@given(said=st.lists(texts, min_size=5, max_size=5), tools=st.booleans())
def test_what_a_client_writes_becomes_no_special_token(name, said, tools):
    theirs, ours = tokenizers(name)
    if ours.chat_problem is not None:
        pytest.skip(ours.chat_problem)

    def chat(harmless):
        asked, told, town, result, again = (f"a{spelt(ours, text, harmless)}" for text in said)
        described = TOOL["function"] | {"description": told}
        messages = [PLAIN | {"content": asked}, CALLS | {"tool_calls": [call({"town": town, told: [town]})]}]
        messages += [RESULT | {"content": result}, ANSWER, AGAIN | {"content": again}]
        if not tools:
            messages = [PLAIN | {"content": asked}, ANSWER, AGAIN | {"content": again}]
        return messages, {"tools": [TOOL | {"function": described}] if tools else None}

    def marks(messages, variables):
        ids = ours.render_chat(messages, variables)
        return [i for i in ids if i in ours._mark_ids], ids

    messages, variables = chat(harmless=False)
    text, refusal = expected(theirs, messages, **variables)
    if refusal:
        return
    found, ids = marks(messages, variables)
    assert found == marks(*chat(harmless=True))[0]
    assert shown(ours, ids) == text or "Phi-3" in name
