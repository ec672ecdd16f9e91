"""Models as /v1/models lists them, with what each can."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from tandem.app.api.http.backend import ModelCard, ServingBackend
from tandem.app.api.http.errors import model_not_found
from tandem.deployments.modes import MODES
from tandem.engine.base import EngineError


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
    """

    max_model_len: int
    vocab_size: int
    chat: bool
    modes: list[str]
    objectives: list[str]


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
    tokenizer = backend.tokenizer(card.id)
    return ServedModel(
        **card.model_dump(),
        max_model_len=card.context,
        vocab_size=tokenizer.vocab_size,
        chat=tokenizer.chats,
        modes=served_modes(backend),
        objectives=list(backend.objectives()),
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
