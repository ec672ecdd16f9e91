"""Tokenizers and chat templates."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from tandem.engine import family
from tandem.engine.base import InvalidRequest
from tandem.engine.text.tokenizer import Tokenizer

SPECIAL = ["<bos>", "<eos>", "<|q|>", "<|a|>"]
TEMPLATE = "<bos>{% for m in messages %}<|q|> {{ m.content | trim }}{% endfor %}<|a|>"
CONFIG = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}}
SAMPLE = ["The town of Zürich has 3 bridges; 東京 🗼 naïve café.", "what does the cat say? <|q|> nothing"]


def definition(adds_bos: bool = False) -> str:
    tokenizer = RustTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE * 4, trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
        )
    return tokenizer.to_str()


DEFINITION = definition()
TOKENIZER = Tokenizer(DEFINITION, CONFIG, TEMPLATE)
BOS, EOS, Q, A = range(4)

texts = st.text(max_size=60) | st.lists(st.sampled_from([*SPECIAL, "<", "|", "q", "a|>", " ", "é"])).map(
    "".join
)
ids = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=60)


def test_loads_a_model_folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(DEFINITION)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**CONFIG, "chat_template": "wrong"}))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.eos, loaded.bos, loaded.vocab_size) == (EOS, BOS, 320)
    assert loaded.vocabulary == TOKENIZER.vocabulary
    assert loaded.render_chat([{"role": "user", "content": "cat"}])[:2] == [BOS, Q]


@pytest.mark.parametrize(("said", "further"), [(None, ()), (1, ()), ([3, 1, 2], (2, 3)), ([2], (2,))])
def test_other_end_tokens_than_eos(tmp_path, said, further):
    (tmp_path / "tokenizer.json").write_text(DEFINITION)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    assert Tokenizer.load(tmp_path).further_ends == ()
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": said}))
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.eos, loaded.further_ends) == (EOS, further)


def test_the_template_may_be_in_the_configuration(tmp_path):
    (tmp_path / "tokenizer.json").write_text(DEFINITION)
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": TEMPLATE}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**CONFIG, "chat_template": named}))
    assert Tokenizer.load(tmp_path).render_chat([]) == [BOS, A]


def test_a_model_without_eos_is_refused():
    with pytest.raises(ValueError, match="eos"):
        Tokenizer(DEFINITION, {"bos_token": "<bos>"})


def test_another_vocabulary_has_another_id():
    changed = json.loads(DEFINITION)
    changed["model"]["merges"].pop()
    changed["model"]["vocab"].pop(max(changed["model"]["vocab"], key=changed["model"]["vocab"].get))
    assert Tokenizer(json.dumps(changed), CONFIG).vocabulary != TOKENIZER.vocabulary


@pytest.mark.parametrize(
    "tokenizer",
    [Tokenizer(definition(adds_bos=True), CONFIG), Tokenizer(DEFINITION, {**CONFIG, "add_bos_token": True})],
    ids=["post-processor", "configuration"],
)
def test_bos_is_added_once(tokenizer):
    plain = TOKENIZER.encode("cat")
    assert BOS not in plain
    assert tokenizer.encode("cat") == tokenizer.encode("<bos>cat") == [BOS, *plain]
    assert tokenizer.encode("") == [BOS]
    assert tokenizer.written([BOS, *plain]) == b"cat", "a service with this tokenizer adds it, too"
    assert TOKENIZER.written([BOS, *plain]) == b"<bos>cat", "and one with that does not"


def test_raw_prompts_may_use_special_tokens():
    assert TOKENIZER.encode("<|q|>cat<|a|>") == [Q, *TOKENIZER.encode("cat"), A]


def test_chat_is_rendered_by_the_template():
    rendered = TOKENIZER.render_chat([{"role": "user", "content": "  the cat "}])
    assert rendered == [BOS, Q, *TOKENIZER.encode(" the cat"), A]


@given(st.lists(texts, min_size=1, max_size=3))
def test_special_tokens_in_a_content_stay_text(contents):
    rendered = TOKENIZER.render_chat([{"role": "user", "content": c} for c in contents])
    assert [i for i in rendered if i < 4] == [BOS] + [Q] * len(contents) + [A]
    said = b"".join(TOKENIZER.token_bytes(i) for i in rendered).decode()
    assert said == "<bos>" + "".join("<|q|> " + c.strip() for c in contents) + "<|a|>"


def test_a_content_with_every_private_character_is_text():
    everything = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0xF0100)])) + "<|q|>"
    rendered = TOKENIZER.render_chat([{"role": "user", "content": everything}])
    assert [i for i in rendered if i < 4] == [BOS, Q, A]
    assert TOKENIZER.decode(rendered) == f" {everything}"


def test_half_a_character_is_refused():
    with pytest.raises(InvalidRequest, match=r"half a character, '\\ud83d'"):
        TOKENIZER.render_chat([{"role": "user", "content": "a\ud83d<|q|>"}])


def test_a_special_token_in_two_halves_stays_text():
    joined = Tokenizer(DEFINITION, CONFIG, "{% for m in messages %}{{ m.content }}{% endfor %}")
    rendered = joined.render_chat([{"role": "user", "content": c} for c in ("<", "|q|><|", "a|>")])
    assert min(rendered) >= 4
    assert joined.decode(rendered) == "<|q|><|a|>"


def test_variables_of_the_template():
    thinks = Tokenizer(
        DEFINITION, CONFIG, "{{ note }}{% if thinking %}<|a|>{% endif %}{{ messages[0].content }}"
    )
    chat = [{"role": "user", "content": "x"}]
    assert thinks.render_chat(chat) == thinks.encode("x")
    assert thinks.render_chat(chat, {"thinking": True}) == thinks.encode("<|a|>x")
    inserted = thinks.render_chat(chat, {"note": "<|q|>", "messages": [], "self": 1, "chat_template": "no"})
    assert Q not in inserted
    assert thinks.decode(inserted) == "<|q|>x"


def test_a_template_without_system_messages_has_their_text_before_the_users():
    """Gemma 2's refuses them by raise_exception."""
    refusing = Tokenizer(
        DEFINITION,
        CONFIG,
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE,
    )
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "cat"}
    folded = {"role": "user", "content": "Be brief.\n\ncat"}
    assert refusing.render_chat([system, user, user]) == refusing.render_chat([folded, user])
    with pytest.raises(InvalidRequest, match="no system role"):
        refusing.render_chat([system])


def test_sampling_that_the_model_recommends(tmp_path):
    family_folder = family.path("target")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((family_folder / name).read_bytes())
    told = {"temperature": 0.6, "top_p": None, "top_k": 20, "max_new_tokens": 7}
    (tmp_path / "generation_config.json").write_text(json.dumps(told))
    assert Tokenizer.load(tmp_path).sampling == {"temperature": 0.6, "top_k": 20}
    (tmp_path / "generation_config.json").write_text('{"top_k": -1}')
    assert Tokenizer.load(tmp_path).sampling == {"top_k": 0}
    (tmp_path / "generation_config.json").write_text('{"temperature": -1}')
    with pytest.raises(ValueError, match="generation_config.json.*temperature"):
        Tokenizer.load(tmp_path)
    assert Tokenizer.load(family_folder).sampling == {}


def test_refusals_of_the_template_are_the_requests_fault():
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(DEFINITION, CONFIG).render_chat([])
    strict = Tokenizer(DEFINITION, CONFIG, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        strict.render_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("{{ 1 + x }}", "unsupported operand"),
        ("{{ x.y.z }}", "undefined|no attribute"),
        ("{{ 1 // 0 }}", "zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.mro() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "too big"),
        ("{{ x | tojson }}", "not JSON serializable"),
        ("{{ [] | nothing }}", "No filter"),
    ],
)
def test_any_error_of_a_template_is_the_requests_fault(broken, message):
    template = TEMPLATE + "{% if messages[0].content == 'break' %}" + broken + "{% endif %}"
    tokenizer = Tokenizer(DEFINITION, CONFIG, template)
    with pytest.raises(InvalidRequest, match=message):
        tokenizer.render_chat([{"role": "user", "content": "break"}], {"x": None if "1 +" in broken else {1}})


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "it has no chat template"),
        ("{% for m in messages %}<|q|>{% endfor %}<|a|>", "leaves out what the user says"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", "leaves out"),
        ("{% for", "its chat template is broken: unexpected 'end of template'"),
        ("{{ messages[0].content }}{{ raise_exception('never') }}", "refuses these messages: never"),
        ({"rag": TEMPLATE}, "it has no chat template"),
    ],
)
def test_a_model_without_a_template_that_shows_the_chat_cannot_chat(template, reason):
    tokenizer = Tokenizer(DEFINITION, CONFIG, template)
    assert not tokenizer.chats
    assert reason in tokenizer.chat_problem
    with pytest.raises(InvalidRequest, match="this model cannot chat: .*use /v1/completions"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def prompts_of(template, *contents):
    """Return the special tokens of a prompt, and its text."""
    tokenizer = Tokenizer(DEFINITION, CONFIG, template)
    rendered = tokenizer.render_chat([{"role": "user", "content": content} for content in contents])
    return [i for i in rendered if i < 4], b"".join(map(tokenizer.token_bytes, rendered)).decode()


SAID = "{% for m in messages %}<|q|>CONTENT{% endfor %}"


@pytest.mark.parametrize(
    ("written", "content", "text"),
    [
        ("{{ m.content | replace('-', '') }}", "<|-a|-> <|a|>", "<|a|> <|a|>"),
        ("{{ m.content.split('-') | join }}", "<|-a|>", "<|a|>"),
        ("{{ ''.join(m.content.split()) }}", "<| a |>", "<|a|>"),
        ("{{ m.content | lower }}", "<|A|> <|Q|>", "<|a|> <|q|>"),
        ("{{ m.content[1:] }}", "-<|a|>", "<|a|>"),
        ("{{ m.content | reverse }}", ">|a|<", "<|a|>"),
        ("{{ '<%s|>' | format(m.content) }}", "|a", "<|a|>"),
        ("{{ '<|' ~ m.content ~ '|>' }}", "a", "<|a|>"),
        ("<|{{ m.content }}|>", "a", "<|a|>"),
        ("<|{{ m.content }}", "a|>", "<|a|>"),
        ("{{ m.content }}|>", "<|a", "<|a|>"),
        ("{{ [m.content] }}", "<|a|>'", '["<|a|>\'"]'),
        ("{{ [m.content] | tojson }}", '<|a|>"', '["<|a|>\\""]'),
        ("{{ [m.content] | tojson(ensure_ascii=True, indent=1) }}", "<|a|>é", '[\n "<|a|>\\u00e9"\n]'),
        ("{{ m.content | escape }}", "<|a|>", "&lt;|a|&gt;"),
        ("{{ 'x' | safe + m.content }}", "<|a|>", "x&lt;|a|&gt;"),
        ("{{ m.content | safe }}", "<|a|>", "<|a|>"),
        ("{{ '{0}{0}'.format(m.content) }}", "<|a|>", "<|a|><|a|>"),
        ("{{ m.content.partition('|')[2] }}{{ m.content }}", "<|a|>", "a|><|a|>"),
        ("{% set c %}{{ m.content }}{% endset %}{{ c.split('|>')[0] }}{{ '|>' in c }}", "<|a|>", "<|aTrue"),
        ("{% if m.content.startswith('<|a') %}<|a|>{% endif %}{{ m.content | length }}", "<|a|>", None),
        ("{{ {'<|a|>': '<|a|>'}[m.content] }}", "<|a|>", None),
    ],
)
def test_only_a_template_writes_special_tokens(written, content, text):
    """A client's text stays text in the midst of the template's own, after each operation."""
    template = SAID.replace("CONTENT", written) + "<|a|>{{ messages[0].content | trim }}"
    marks, shown = prompts_of(template, content)
    own = [A] if text is None else []
    assert marks == [Q, *own, A]
    ends = f"<|a|>{content.strip()}"
    assert shown == f"<|q|>{text}{ends}" if text is not None else shown.endswith(ends)


def test_what_cannot_be_told_is_text():
    """The time is another one each time that the template is rendered."""
    template = "{{ strftime_now('%f') }}" + TEMPLATE
    marks, _ = prompts_of(template, "cat")
    assert marks == [BOS, Q, A]
    marks, shown = prompts_of(template, "<|a|>")
    assert marks == []
    assert shown.endswith("<bos><|q|> <|a|><|a|>")


def test_words_and_white_space_among_added_tokens_are_read_in_chats():
    """Gemma's runs of newlines are such tokens, and names that were added to a model."""
    changed = json.loads(DEFINITION)
    names = ["\n\n", "Tandem", "<tag>"]
    for number, name in enumerate(names, TOKENIZER.vocab_size):
        changed["added_tokens"].append(
            {**changed["added_tokens"][Q], "id": number, "content": name, "special": False}
        )
    tokenizer = Tokenizer(json.dumps(changed), CONFIG, TEMPLATE)
    lines, word, tag = range(TOKENIZER.vocab_size, TOKENIZER.vocab_size + 3)
    for said in ("Tandem\n\nis", "Tandem\n\nis <tag>", "Tandem\n\nis <|q|>"):
        rendered = tokenizer.render_chat([{"role": "user", "content": said}])
        assert (rendered.count(lines), rendered.count(word), rendered.count(tag)) == (1, 1, 0)


@given(texts)
def test_text_survives_the_round_trip(text):
    ordinary = text.translate(str.maketrans("<>", "()"))
    assert TOKENIZER.decode(TOKENIZER.encode(ordinary)) == ordinary


@given(ids)
def test_decodes_as_the_tokenizers_library_does(ids):
    assert TOKENIZER.decode(ids) == RustTokenizer.from_str(DEFINITION).decode(ids)


def test_tokens_for_logprobs():
    for token in TOKENIZER.encode("🗼 é the"):
        assert TOKENIZER.token_text(token) == TOKENIZER.token_bytes(token).decode("utf-8", "replace")
    assert TOKENIZER.token_text(EOS) == "<eos>"
    assert TOKENIZER.token_bytes(100_000) == b""  # padding of the model's matrix
    assert TOKENIZER.decode([EOS]) == ""


def test_sentencepiece_tokens():
    vocab = {"<s>": 0, "</s>": 1, "▁the": 2, "<0xC3>": 3, "<0xA9>": 4}
    tokenizer = RustTokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    loaded = Tokenizer(tokenizer.to_str(), {"eos_token": "</s>"})
    assert loaded.decode([0, 2, 3, 4, 1]) == " theé"
    assert loaded.bos is None


FOLDERS = Path(family.__file__).parent / "weights"
FAMILY = {name: Tokenizer.load(FOLDERS / name) for name in ("target", "other")}
BYTES = [
    b"",
    b"\xc3",
    "Zürich 東京 🗼 e\u0301 <eos> <|q|>\r\n\t".encode(),
    bytes(range(256)),
    b"\xed\xa0\x80 \xc0\x80 a",
]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, *FAMILY.values()], ids=["test", *FAMILY])
@given(st.binary(max_size=40) | texts.map(str.encode))
@example(BYTES[1])
@example(BYTES[2])
@example(BYTES[3])
@example(BYTES[4])
def test_any_bytes_become_ordinary_tokens(tokenizer, data):
    encoded = tokenizer.encode_bytes(data)
    assert tokenizer.shown_bytes(encoded) == data
    assert all(tokenizer.special_name(i) is None for i in encoded)


@pytest.mark.parametrize("tokenizer", FAMILY.values(), ids=FAMILY)
@given(st.text("abcdefg Zürich 東京.,'🗼\n", max_size=40))
def test_bytes_of_text_become_the_tokens_of_the_text(tokenizer, text):
    assert tokenizer.encode_bytes(text.encode()) == tokenizer.encode(text)


def test_what_is_no_text_leaves_the_words_around_it_whole():
    cat = TOKENIZER.encode("the cat")
    encoded = TOKENIZER.encode_bytes(b"the cat\xffthe cat")
    assert (encoded[: len(cat)], encoded[-len(cat) :]) == (cat, cat)
    assert [TOKENIZER.token_bytes(i) for i in encoded[len(cat) : -len(cat)]] == [b"\xff"]


def normalising():
    changed = json.loads(DEFINITION)
    changed["normalizer"] = {"type": "NFC"}
    return Tokenizer(json.dumps(changed), CONFIG)


def test_a_normaliser_changes_no_bytes():
    """Normalised words are encoded byte by byte; the other words keep their tokens."""
    tokenizer = normalising()
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"  # so it does normalise
    encoded = tokenizer.encode_bytes("the cat e\u0301 the cat".encode())
    assert tokenizer.shown_bytes(encoded) == "the cat e\u0301 the cat".encode()
    assert encoded == [
        *tokenizer.encode("the cat"), *tokenizer.encode(" "),
        *map(tokenizer._byte, "e\u0301".encode()), *tokenizer.encode(" the cat"),
    ]  # fmt: skip


def sentencepiece(byte_tokens):
    """A tokenizer that puts a space before every text, and writes rare bytes as <0x..>."""
    pieces = ["<s>", "</s>", "▁", "t", "h", "e", "▁t", "▁th", "▁the", *byte_tokens]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[("▁", "t"), ("▁t", "h"), ("▁th", "e")],
        byte_fallback=True,
    )
    tokenizer = RustTokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(tokenizer.to_str(), {"eos_token": "</s>"})


@given(st.binary(max_size=20) | st.text("the é<s>", max_size=20).map(str.encode))
def test_bytes_in_a_vocabulary_with_byte_fallback(data):
    tokenizer = sentencepiece([f"<0x{b:02X}>" for b in range(256)])
    assert tokenizer.shown_bytes(tokenizer.encode_bytes(data)) == data


def test_bytes_do_not_get_the_space_that_texts_get():
    tokenizer = sentencepiece([f"<0x{b:02X}>" for b in range(256)])
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode_bytes(b"the the")] == [
        b"t",
        b"h",
        b"e",
        b" the",
    ]


def test_a_vocabulary_without_the_byte_refuses_it():
    with pytest.raises(InvalidRequest, match="0xC3"):
        sentencepiece([]).encode_bytes("é".encode())


def test_special_tokens_have_names():
    assert [TOKENIZER.special_name(i) for i in (BOS, EOS, Q, A, A + 1, 100_000)] == [*SPECIAL, None, None]
    assert [TOKENIZER.special_id(name) for name in SPECIAL] == [BOS, EOS, Q, A]
    for name in ("<|x|>", "!", ""):
        with pytest.raises(InvalidRequest, match="no special token"):
            TOKENIZER.special_id(name)


def test_an_added_word_is_not_special():
    changed = json.loads(DEFINITION)
    added = {**changed["added_tokens"][Q], "id": TOKENIZER.vocab_size, "content": "Tandem", "special": False}
    changed["added_tokens"].append(added)
    tokenizer = Tokenizer(json.dumps(changed), CONFIG)
    assert tokenizer.special_name(TOKENIZER.vocab_size) is None
    assert tokenizer.shown_bytes([TOKENIZER.vocab_size]) == b"Tandem"
    assert tokenizer.shown_bytes(tokenizer.encode_bytes(b"a Tandem")) == b"a Tandem"
    with pytest.raises(InvalidRequest):
        tokenizer.special_id("Tandem")


WITH_TOOLS = (
    "{%- for m in messages -%}<|q|>{{ m['role'] }}: {{ m['content'] }}"
    "{%- for call in m.get('tool_calls', []) -%}"
    "[{{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}]"
    "{%- endfor -%}{%- endfor -%}"
)


@pytest.mark.parametrize("text", ["<eos>", "über <|q", "東京"])
def test_what_a_template_makes_of_tools_stays_text(text):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"town": text}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": "1"},
    ]
    ids = Tokenizer(DEFINITION, CONFIG, WITH_TOOLS).render_chat(messages)
    assert [i for i in ids if i < len(SPECIAL)] == [Q, Q], "the template's own"
    shown = b"".join(TOKENIZER.token_bytes(i) for i in ids if i >= len(SPECIAL)).decode()
    assert shown == f'assistant: [f {{"town": "{text}"}}]tool: {text}'


def test_templates_and_tokens_are_found_where_transformers_finds_them(tmp_path):
    """In files before the configuration, by name, and with tools."""
    from transformers import AutoTokenizer

    show = "{% for m in messages %}{{ m.content }}{% endfor %} NAME {{ bos_token }} {{ image_token }} {{ boi_token }} "
    show += (
        "{{ pad_token is defined }} {{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}"
    )

    def check(**variables):
        theirs, ours = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
        chat = [{"role": "user", "content": "cat", "name": "Ann"}]
        for more in (variables, variables | {"tools": [{"type": "function", "function": {"name": "f"}}]}):
            text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **more)
            ids = ours.render_chat(chat, more)
            assert b"".join(map(ours.token_bytes, ids)).decode() == text
            assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        return text

    def write(name, content):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))

    write("tokenizer.json", DEFINITION)
    config = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "image_token": "<|q|>",
        "tokenizer_class": "TokenizersBackend",
    }
    config |= {"extra_special_tokens": {"boi_token": "<|a|>"}, "additional_special_tokens": ["<|a|>"]}
    named = [{"name": name, "template": show.replace("NAME", name)} for name in ("default", "tool_use")]
    write("tokenizer_config.json", config | {"chat_template": show})
    assert "NAME <bos> <|q|> <|a|> False False True True" in check()
    assert "cat NAME x" in check(bos_token="x")
    write("tokenizer_config.json", config | {"chat_template": named})
    assert "cat tool_use" in check()
    write("special_tokens_map.json", {"pad_token": {"content": "<|a|>", "lstrip": False}})
    assert "<|a|> True" in check()
    write("chat_template.jinja", show.replace("NAME", "file"))
    assert "cat file" in check()
    write("additional_chat_templates/tool_use.jinja", show.replace("NAME", "further"))
    assert "cat further" in check()


def test_a_processors_template_is_the_last_resort(tmp_path):
    (tmp_path / "tokenizer.json").write_text(DEFINITION)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    assert Tokenizer.load(tmp_path).chat_template == TEMPLATE
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**CONFIG, "chat_template": "another"}))
    assert Tokenizer.load(tmp_path).chat_template == "another"


def test_the_import_does_not_pull_in_transformers_or_torch():
    code = "import sys, engine.text; assert not {'transformers', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("model", ["target", "other"])
def test_the_family_is_tokenized_as_transformers_does(model):
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(FOLDERS / model), FAMILY[model]
    chat = [
        {"role": r, "content": c}
        for r, c in [("system", "Be brief."), ("user", "Who? é"), ("assistant", "I.")]
    ]
    chat.append({"role": "user", "content": "Where is Zürich, and why?"})
    assert ours.render_chat(chat) == theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert ours.encode("<|q|> Who is it?") == theirs("<|q|> Who is it?")["input_ids"]
    assert (ours.eos, ours.bos, ours.vocab_size) == (theirs.eos_token_id, theirs.bos_token_id, len(theirs))
