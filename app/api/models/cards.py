"""Models as /v1/models lists them, with what each can."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tandem.app.api.http.backend import ModelCard, ServingBackend
from tandem.app.api.http.errors import model_not_found
from tandem.deployments.docstrings import describe
from tandem.deployments.modes import MODES
from tandem.engine.base import EngineError


class Example(BaseModel):
    """A question to try a model with.

    mode: a mode that suits it; null: the server's choice.
    options: further fields of the request's `tandem`; a device among them is left out where it is not there.
    """

    model_config = ConfigDict(frozen=True, json_schema_extra=describe)

    question: str
    mode: str | None = None
    options: dict[str, str | float] = {}


ABOUT_DEMO = (
    "These are Tandem's small demo models. They know only an invented encyclopedia: 240 towns, people, machines and "
    "dishes. To anything else they give a made-up answer."
)
DEMO_EXAMPLES = (
    Example(question="Give me a full description of Corhaven.", mode="speculative"),
    Example(  # the cloud begins, and hands over
        question="Tell me a story about Ada Winsen.",
        mode="race",
        options={"device": "xiaomi-14", "budget": 1.0, "reader_rate": 10.0},
    ),
    Example(question="Write everything you know about the Narex.", mode="sketch"),
    Example(question="Tell me about the town of Marworth.", mode="device"),
    Example(question="Compare the towns Tammere and Quelham."),
    Example(question="Give me a full description of Valham."),
)
EXAMPLES = (
    Example(question="Write a Python function that reverses a list.", mode="speculative"),
    Example(question="Explain binary search.", mode="race"),
    Example(question="What should I look at before I buy a used bicycle?", mode="sketch"),
    Example(question="Suggest three names for a grey cat.", mode="device"),
    Example(question="Why is the sky blue?"),
    Example(question="Write a short, polite reminder to pay an invoice."),
)
"""Questions for any model, the last ones for servers without those modes."""


class ServedModel(ModelCard):
    """A model under the name that clients use.

    context: the most tokens of prompt and output together.
    vocabulary: id of the vocabulary, equal for models whose token ids mean the same.
    aliases: further names of the model.
    parent: the model whose adapter this is; null: it is none.
    max_model_len: the context, under vLLM's name.
    vocab_size: number of token ids.
    chat: whether it has a chat template; otherwise only text completions are served.
    modes: modes that this API serves it in.
    objectives: names of objectives that a request may have; none unless the collaboration policy weighs them.
    demo: whether its answers come from Tandem's embedded models.
    about: what a reader should know of its answers; empty: nothing in particular.
    examples: questions to try it with, in modes that this API serves.
    """

    max_model_len: int
    vocab_size: int
    chat: bool
    modes: list[str]
    objectives: list[str]
    demo: bool
    about: str
    examples: list[Example]


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ServedModel]


def model_card(model: str, backend: ServingBackend) -> ModelCard:
    """Return the model under that name. Raises ApiError if there is none."""
    cards = backend.models()
    found = next((card for card in cards if model == card.id or model in card.aliases), None)
    if found is None:
        raise model_not_found(model, [name for card in cards for name in (card.id, *card.aliases)])
    return found


def served_model(card: ModelCard, backend: ServingBackend) -> ServedModel:
    """Return the model with what it can."""
    tokenizer, modes = backend.tokenizer(card.id), served_modes(backend)
    demo = bool(card.parts) and card.parts[0].demo
    return ServedModel(
        **card.model_dump(),
        max_model_len=card.context,
        vocab_size=tokenizer.vocab_size,
        chat=tokenizer.chats,
        modes=modes,
        objectives=list(backend.objectives()),
        demo=demo,
        about=ABOUT_DEMO if demo else "",
        examples=[
            each for each in (DEMO_EXAMPLES if demo else EXAMPLES) if each.mode is None or each.mode in modes
        ],
    )


def served_modes(backend: ServingBackend) -> list[str]:
    """Return the modes that requests may name here."""
    return [mode for mode in MODES if _serves(backend, mode)]


def _serves(backend: ServingBackend, mode: str) -> bool:
    try:
        backend.check(mode)
    except EngineError:
        return False
    return True
