"""Text completions and models through the official client."""

import pytest
from openai import NotFoundError

from tests.app.api.null_backend import TOKENIZER, NullBackend, events

SAYS = "and so on."


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS)


async def test_a_text_prompt(openai, backend):
    answer = await openai.completions.create(model="null", prompt="One, two")
    choice = answer.choices[0]
    assert (answer.object, choice.text, choice.finish_reason) == ("text_completion", SAYS, "stop")
    assert backend.jobs[0].prompt == tuple(TOKENIZER.encode("One, two"))
    assert backend.jobs[0].sampling.max_tokens == 512 - 8
    assert answer.tandem["origins"] == [["cloud", len(SAYS)]]


async def test_a_prompt_of_token_ids(openai, backend):
    answer = await openai.completions.create(model="null", prompt=TOKENIZER.encode("ab"), echo=True)
    assert backend.jobs[0].prompt == tuple(TOKENIZER.encode("ab"))
    assert answer.choices[0].text == "ab" + SAYS


async def test_token_ids_become_text_only_to_be_echoed(openai, monkeypatch):
    decoded = []
    monkeypatch.setattr(TOKENIZER, "decode", lambda ids: decoded.append(ids) or "ab")
    await openai.completions.create(model="null", prompt=TOKENIZER.encode("ab"))
    assert not decoded
    await openai.completions.create(model="null", prompt=TOKENIZER.encode("ab"), echo=True)
    assert len(decoded) == 1


async def test_several_prompts(openai, backend):
    answer = await openai.completions.create(model="null", prompt=["a", "bb"], n=2, max_tokens=1, echo=True)
    assert [(c.index, c.text) for c in answer.choices] == list(enumerate(["aa", "aa", "bba", "bba"]))
    assert [len(job.prompt) for job in backend.jobs] == [1, 1, 2, 2]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)


async def test_echo_has_the_origin_prompt(openai):
    answer = await openai.completions.create(model="null", prompt="Say: ", echo=True)
    assert answer.choices[0].text == "Say: " + SAYS
    assert answer.tandem["origins"] == [["prompt", 5], ["cloud", len(SAYS)]]


async def test_echo_in_a_stream(openai):
    stream = await openai.completions.create(model="null", prompt="Say: ", echo=True, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks) == "Say: " + SAYS
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_logprobs(openai):
    answer = await openai.completions.create(model="null", prompt="x", logprobs=2, max_tokens=3)
    scores = answer.choices[0].logprobs
    assert (scores.tokens, scores.token_logprobs) == (["a", "n", "d"], [-0.25] * 3)
    assert scores.top_logprobs[0] == {"a": -0.25, "`": -1.25}
    assert scores.text_offset == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["né", list(TOKENIZER.encode("né"))])
async def test_an_echoed_prompt_is_scored(http, backend, prompt, stream):
    """lm-eval asks for this, to compare continuations."""
    asked = {
        "model": "null",
        "prompt": prompt,
        "max_tokens": 1,
        "logprobs": 1,
        "echo": True,
        "stream": stream,
    }
    reply = await http.post("/v1/completions", json=asked)
    choices = [e["choices"][0] for e in events(reply.text)] if stream else reply.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "néa"
    scores = {name: [x for c in choices for x in c["logprobs"][name]] for name in choices[0]["logprobs"]}
    ids = TOKENIZER.encode("né")
    assert scores["tokens"] == [*map(TOKENIZER.token_text, ids), "a"]
    assert scores["token_logprobs"] == [None, *(-float(i) for i in ids[1:]), -0.25]
    assert scores["top_logprobs"][0] is None
    assert scores["text_offset"] == [0, 1, 1, 2], "é is two tokens, and the second completes it"
    (job,) = backend.jobs
    assert (job.mode, job.scored) == ("cloud", True)


async def test_prompts_are_scored_in_the_cloud_only(http):
    asked = {"model": "null", "prompt": "x", "logprobs": 1, "echo": True, "tandem": {"mode": "speculative"}}
    reply = await http.post("/v1/completions", json=asked)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")


async def test_logprobs_in_a_stream(openai):
    stream = await openai.completions.create(model="null", prompt="x", logprobs=0, max_tokens=5, stream=True)
    scores = [chunk.choices[0].logprobs async for chunk in stream]
    assert [t for s in scores for t in s.tokens] == list("and s")
    assert [o for s in scores for o in s.text_offset] == [0, 1, 2, 3, 4]
    assert all(top == {} for s in scores for top in s.top_logprobs)


async def test_the_best_of_several(openai, backend):
    """Return those with the likeliest tokens, in the order of that; all are counted."""
    backend.scores = iter([-1.0, -0.5, -2.0, -0.75])
    answer = await openai.completions.create(
        model="null", prompt="x", n=2, best_of=4, max_tokens=3, seed=10, logprobs=1
    )
    assert [c.index for c in answer.choices] == [0, 1]
    assert [c.logprobs.token_logprobs for c in answer.choices] == [[-0.5] * 3, [-0.75] * 3]
    assert [job.sampling.seed for job in backend.jobs] == [10, 11, 12, 13]
    assert answer.usage.completion_tokens == 12
    assert answer.tandem["origins"] == [["cloud", 6]]


async def test_the_best_of_several_without_log_probabilities(openai, backend):
    answer = await openai.completions.create(model="null", prompt=["x", "y"], best_of=2, echo=True)
    assert [c.text for c in answer.choices] == ["x" + SAYS, "y" + SAYS]
    assert [c.logprobs for c in answer.choices] == [None, None]
    assert [job.sampling.logprobs for job in backend.jobs] == [0] * 4


async def test_token_ids_as_in_vllm(openai, http):
    extra = {"return_token_ids": True}
    answer = await openai.completions.create(model="null", prompt="One", n=2, extra_body=extra)
    tokens = [*TOKENIZER.encode(SAYS), TOKENIZER.eos]
    assert [c.token_ids for c in answer.choices] == [tokens, tokens]
    assert [c.prompt_token_ids for c in answer.choices] == [TOKENIZER.encode("One")] * 2
    asked = {"model": "null", "prompt": "One", "stream": True, "stop": "so", **extra}
    chunks = [event["choices"][0] for event in events((await http.post("/v1/completions", json=asked)).text)]
    assert [chunk.get("prompt_token_ids") for chunk in chunks][:2] == [TOKENIZER.encode("One"), None]
    streamed = [token for chunk in chunks for token in chunk["token_ids"]]
    assert streamed == TOKENIZER.encode("and so")
    assert (await openai.completions.create(model="null", prompt="One")).choices[0].token_ids is None


async def test_log_probabilities_of_the_prompt_as_in_vllm(openai, backend):
    prompt = TOKENIZER.encode("abc")
    answer = await openai.completions.create(
        model="null", prompt="abc", max_tokens=2, logprobs=0, extra_body={"prompt_logprobs": 3}
    )
    (choice,) = answer.choices
    first, *rest = choice.prompt_logprobs
    assert first is None
    for token, found in zip(prompt[1:], rest, strict=True):
        text = TOKENIZER.token_text(token)
        assert found == {str(token): {"logprob": -float(token), "rank": None, "decoded_token": text}}
    assert [*choice.logprobs.top_logprobs] == [{}, {}]
    (job,) = backend.jobs
    assert (job.scored, job.mode, job.sampling.logprobs) == (True, "cloud", 3)


async def test_models(openai):
    (model,) = (await openai.models.list()).data
    assert (model.id, model.context, model.vocabulary) == ("null", 512, TOKENIZER.vocabulary)
    assert await openai.models.retrieve("null") == model
    assert (model.max_model_len, model.vocab_size, model.chat) == (512, TOKENIZER.vocab_size, True)
    assert "split" not in model.modes
    assert {"cloud", "device", "race"} <= {*model.modes}
    with pytest.raises(NotFoundError):
        await openai.models.retrieve("other/model")
