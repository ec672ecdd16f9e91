"""Chat completions through OpenAI's client."""

import asyncio

import pytest

from tandem.app.api.http.settings import ApiSettings
from tandem.deployments.modes.speculative.settings import SpeculativeOptions
from tandem.engine.text.tokenizer import Tokenizer
from tests.app.api.null_backend import TOKENIZER, NullBackend, times

HELLO = [{"role": "user", "content": "Hello?"}]
PROMPT_TOKENS = len(TOKENIZER.render_chat(HELLO))
SAYS = "Zürich 🗼 has three bridges."


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS)


async def test_an_answer(openai, backend):
    answer = await openai.chat.completions.create(model="null", messages=HELLO)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", SAYS, "stop")
    assert choice.logprobs is None
    assert (answer.object, answer.model) == ("chat.completion", "null")
    assert answer.id.startswith("chatcmpl-")
    tokens = len(SAYS.encode()) + 1  # and eos
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_the_request_as_a_job(openai, backend):
    await openai.chat.completions.create(
        model="null",
        messages=HELLO,
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=5,
        stop=["x", "y"],
        logprobs=True,
        top_logprobs=3,
        user="me",
        logit_bias={"65": -100, "66": 1.5},
        extra_body={
            "top_k": 9,
            "min_p": 0.05,
            "min_tokens": 6,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "stop_token_ids": [77],
            "tandem": {"mode": "speculative", "device": "pixel-1", "window": 4, "reader_rate": 7},
        },
    )
    (job,) = backend.jobs
    assert job.prompt == tuple(TOKENIZER.render_chat(HELLO))
    assert (job.mode, job.device, job.asked(SpeculativeOptions).window) == ("speculative", "pixel-1", 4)
    asked = job.sampling
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k) == (7, 0.5, 0.9, 9)
    assert (asked.presence_penalty, asked.frequency_penalty, asked.repetition_penalty) == (0.1, 0.2, 1.1)
    assert (asked.seed, asked.stop, asked.logprobs) == (5, ("x", "y"), 3)
    assert (asked.ignore_eos, asked.stop_tokens, asked.reader_rate) == (True, (77,), 7)
    assert (asked.min_p, asked.min_tokens, asked.logit_bias) == (0.05, 6, ((65, -100), (66, 1.5)))


async def test_every_end_token_of_the_model_ends_an_answer(openai, backend, monkeypatch):
    monkeypatch.setattr(TOKENIZER, "further_ends", (12, 13))
    for given in ({}, {"stop_token_ids": [77]}, {"ignore_eos": True}):
        await openai.chat.completions.create(model="null", messages=HELLO, max_tokens=2, extra_body=given)
    assert [job.sampling.stop_tokens for job in backend.jobs] == [(12, 13), (77, 12, 13), ()]


async def test_sampling_that_a_request_leaves_out_is_the_models_own(openai, backend, monkeypatch):
    own = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    monkeypatch.setattr(TOKENIZER, "sampling", own)
    await openai.chat.completions.create(model="null", messages=HELLO)
    named = {"top_k": 5, "repetition_penalty": 1.0}
    await openai.chat.completions.create(model="null", messages=HELLO, temperature=0, extra_body=named)
    backend.api = ApiSettings(generation_config=False)
    await openai.chat.completions.create(model="null", messages=HELLO)
    found = [{name: getattr(job.sampling, name) for name in own} for job in backend.jobs]
    assert found == [
        own,
        {"temperature": 0, **named},
        {"temperature": 1, "top_k": 0, "repetition_penalty": 1},
    ]


async def test_variables_reach_the_chat_template(openai, backend, monkeypatch):
    variables = {"enable_thinking": False}
    seen = []
    render = TOKENIZER.render_chat
    monkeypatch.setattr(
        TOKENIZER, "render_chat", lambda chat, given: seen.append(given) or render(chat, given)
    )
    await openai.chat.completions.create(
        model="null", messages=HELLO, extra_body={"chat_template_kwargs": variables}
    )
    assert seen == [variables]


async def test_names_reach_the_chat_template_and_its_errors_the_client(openai, backend, monkeypatch, http):
    """An error is told in Python's words: here that a number is no text."""
    template = "{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}{{ '' if n is undefined else 'n' + n }}"
    named = Tokenizer(TOKENIZER._full.to_str(), {"eos_token": "<eos>"}, template)
    monkeypatch.setattr(TOKENIZER, "render_chat", named.render_chat)
    chat = [{"role": "user", "content": "Hi", "name": "Ann"}]
    await openai.chat.completions.create(model="null", messages=chat)
    assert TOKENIZER.decode(backend.jobs[0].prompt) == "Ann: Hi"
    body = {"model": "null", "messages": chat, "chat_template_kwargs": {"n": 1}}
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = await http.post(path, json=body)
        assert answer.status_code == 400
        assert "can only concatenate str" in answer.json()["error"]["message"]


async def test_defaults(openai, backend):
    for _ in range(2):
        await openai.chat.completions.create(model="null", messages=HELLO)
    first, second = (job.sampling for job in backend.jobs)
    assert (first.temperature, first.top_p, first.top_k, first.logprobs) == (1.0, 1.0, 0, -1)
    assert first.max_tokens == 512 - PROMPT_TOKENS
    assert first.seed != second.seed
    assert backend.jobs[0].id != backend.jobs[1].id
    assert (
        backend.jobs[0].mode,
        backend.jobs[0].device,
        backend.jobs[0].asked(SpeculativeOptions).window,
    ) == (None, None, None)


async def test_messages_of_every_role(openai, backend):
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]
    messages = [
        {"role": "developer", "content": "short"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "go"},
    ]
    await openai.chat.completions.create(model="null", messages=messages)
    joined = [{"role": "user", "content": text} for text in ("short", "two parts", "ok", "go")]
    assert backend.jobs[0].prompt == tuple(TOKENIZER.render_chat(joined))


async def test_special_tokens_of_a_user_are_text(openai, backend):
    await openai.chat.completions.create(model="null", messages=[{"role": "user", "content": "<|a|><eos>"}])
    assert [t for t in backend.jobs[0].prompt if t < 5] == [0, 3, 4]


async def test_max_tokens_ends_with_length(openai):
    answer = await openai.chat.completions.create(model="null", messages=HELLO, max_completion_tokens=6)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.choices[0].message.content, answer.usage.completion_tokens) == ("Zürich"[:5], 6)


async def test_unfinished_characters_at_the_end_are_marked(openai):
    answer = await openai.chat.completions.create(model="null", messages=HELLO, max_tokens=2)
    assert answer.choices[0].message.content == "Z\ufffd"


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("three", "Zürich 🗼 has "),
        (["has", " 🗼 h"], "Zürich"),
        (["bridge", "three br"], "Zürich 🗼 has "),
        ("Q", SAYS),
    ],
)
async def test_stop_strings_are_cut_off(openai, backend, stop, text):
    answer = await openai.chat.completions.create(model="null", messages=HELLO, stop=stop)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, "stop")
    await times(1, backend.closed)
    assert (await backend.engine.stats()).sessions == 0


async def test_a_stop_string_counts_the_tokens_up_to_it(openai):
    answer = await openai.chat.completions.create(model="null", messages=HELLO, stop="has")
    used = len("Zürich 🗼 has".encode())
    assert answer.usage.completion_tokens == used
    assert answer.tandem["stats"]["tokens"]["by_origin"] == {"cloud": used}
    assert answer.tandem["stats"]["mode"] == "cloud"


async def test_several_choices(openai, backend):
    answer = await openai.chat.completions.create(
        model="null", messages=HELLO, n=3, seed=2**63 - 2, extra_body={"tandem": {"mode": "device"}}
    )
    assert [(c.index, c.message.content) for c in answer.choices] == [(i, SAYS) for i in range(3)]
    assert [job.sampling.seed for job in backend.jobs] == [2**63 - 2, 2**63 - 1, 0]
    assert len({job.id for job in backend.jobs}) == 3
    tokens = len(SAYS.encode()) + 1
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, 3 * tokens)
    assert answer.tandem["origins"] == [["device", 3 * len(SAYS)]]
    assert answer.tandem["stats"]["tokens"]["by_origin"] == {"device": 3 * tokens}


async def test_logprobs(openai):
    answer = await openai.chat.completions.create(
        model="null", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=3
    )
    content = answer.choices[0].logprobs.content
    assert [t.token for t in content] == ["Z", "\ufffd", "\ufffd"]
    assert bytes(b for t in content for b in t.bytes) == "Zü".encode()
    assert [len(t.top_logprobs) for t in content] == [2, 2, 2]
    assert content[0].logprob == content[0].top_logprobs[0].logprob == -0.25
    assert content[0].top_logprobs[0].bytes == [ord("Z")]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_and_content_leave_out_the_same_space(openai, backend, stream):
    backend.says = [*TOKENIZER.encode("  a b"), 2]
    asked = {"model": "null", "messages": HELLO, "logprobs": True, "top_logprobs": 1, "stream": stream}
    answer = await openai.chat.completions.create(**asked)
    choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    text = "".join((c.delta if stream else c.message).content for c in choices)
    scored = [token for c in choices for token in c.logprobs.content]
    assert text == " a b"
    assert [t.token for t in scored] == ["", " ", "a", " ", "b", "<eos>"]
    assert [t.token for t in scored] == [t.top_logprobs[0].token for t in scored]


async def test_token_ids_and_scores_of_the_prompt(openai, backend):
    extra = {"return_token_ids": True, "prompt_logprobs": 0}
    answer = await openai.chat.completions.create(
        model="null", messages=HELLO, max_tokens=2, extra_body=extra
    )
    assert tuple(answer.prompt_token_ids) == backend.jobs[0].prompt
    assert answer.choices[0].token_ids == TOKENIZER.encode(SAYS)[:2]
    assert len(answer.prompt_logprobs) == PROMPT_TOKENS
    assert answer.choices[0].logprobs is None
    stream = await openai.chat.completions.create(
        model="null", messages=HELLO, max_tokens=2, stream=True, extra_body={"return_token_ids": True}
    )
    chunks = [chunk async for chunk in stream]
    assert tuple(chunks[0].prompt_token_ids) == backend.jobs[0].prompt
    assert [t for c in chunks for t in c.choices[0].token_ids] == TOKENIZER.encode(SAYS)[:2]


async def test_logprobs_end_where_the_text_is_cut(openai):
    answer = await openai.chat.completions.create(model="null", messages=HELLO, logprobs=True, stop="ich")
    assert [t.token for t in answer.choices[0].logprobs.content] == ["Z", "\ufffd", "\ufffd", "r"]


async def test_origins_and_statistics(openai):
    answer = await openai.chat.completions.create(
        model="null", messages=HELLO, max_tokens=6, extra_body={"tandem": {"mode": "speculative"}}
    )
    # One token a byte: Z, two of ü, r, i, c; a character belongs to the token that completes it.
    assert answer.tandem["origins"] == [["draft", 2], ["corrected", 1], ["draft", 2]]
    stats = answer.tandem["stats"]
    assert (stats["mode"], stats["device"], stats["replans"]) == ("speculative", None, 0)
    assert stats["timing"] == {"ttft_s": 0.001, "total_s": 0.002, "stages_s": {}}
    assert stats["tokens"]["by_origin"] == {"draft": 5, "corrected": 1}
    assert stats["reader"] is None
    assert stats["modes"].keys() == {"speculative"}, "no other mode served it"
    rounds = stats["modes"]["speculative"]
    figures = ("rounds", "drafted", "accepted", "accepted_per_round")
    assert [rounds[figure] for figure in figures] == [2, 8, 6, 3]


async def test_mode_auto_leaves_the_choice_to_the_server(openai, backend):
    for wishes in ({"mode": "auto"}, {"mode": "auto", "device": "pixel-1"}):
        await openai.chat.completions.create(model="null", messages=HELLO, extra_body={"tandem": wishes})
    assert [(job.mode, job.device) for job in backend.jobs] == [(None, None), (None, "pixel-1")]


async def test_two_modes_at_once(openai, backend):
    backend.hold_after = 3
    answers = [
        asyncio.create_task(
            openai.chat.completions.create(
                model="null", messages=HELLO, extra_body={"tandem": {"mode": mode}}
            )
        )
        for mode in ("cloud", "speculative")
    ]
    await times(2, backend.held)  # both are in the middle of their answer
    assert (await backend.engine.stats()).sessions == 2
    backend.go.set()
    done = await asyncio.gather(*answers)
    assert [a.tandem["stats"]["mode"] for a in done] == ["cloud", "speculative"]
    assert [a.choices[0].message.content for a in done] == [SAYS, SAYS]
