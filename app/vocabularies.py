"""The vocabularies of an application: the target's, in whose tokens requests travel, and the drafters' and devices'."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from tandem.app.settings import ModelSettings, Settings
from tandem.cluster.wire.frames import UnknownEngine
from tandem.deployments.pools.device_hosts import HostSettings
from tandem.deployments.pools.engines import tokenizer_model
from tandem.deployments.pools.models import model_folder
from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine.base import Engine
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import Translated, shared_tokens

NULL = "null"
"""The model of an engine without one, to which any tokens will do."""


class UnknownVocabulary(UnknownEngine):
    """The endpoint's tokens cannot be translated here, so it counts as absent."""

    code = "unknown_vocabulary"


class Vocabularies:
    """Vocabularies of one model. target: the tokenizer that turns text into the tokens of requests, which are the
    verifiers'."""

    def __init__(
        self, settings: ModelSettings, hosts: Iterable[HostSettings], load: Callable[[str], Tokenizer]
    ) -> None:
        """Read the tokenizers. Raise ValueError if a verifier has another vocabulary than the text's."""
        self.target = load(settings.text_model)
        verifier = tokenizer_model(settings.verifier.engine) if settings.verifier.exists else None
        if verifier is not None and load(verifier).vocabulary != self.target.vocabulary:
            raise ValueError(
                f"the tokenizer {settings.text_model!r} has another vocabulary than the verifier's model "
                f"{verifier!r}"
            )
        engines = [engine for host in hosts for engine in host.engines]
        engines += [settings.drafter.engine] if settings.drafter.exists else []
        models = {model for engine in engines if (model := tokenizer_model(engine)) is not None}
        self._others = {there.vocabulary: there for there in map(load, sorted(models))}
        for there in self._others.values():
            if there.vocabulary != self.target.vocabulary:
                shared_tokens(there, self.target)  # takes long the first time: not while a request waits

    def spoken(self, engine: Engine, endpoint: EndpointInfo) -> Engine:
        """The endpoint's engine, driven in the target's tokens. Raises UnknownVocabulary."""
        if endpoint.vocabulary == self.target.vocabulary or endpoint.model == NULL:
            return engine
        if (there := self._others.get(endpoint.vocabulary)) is None:
            raise UnknownVocabulary(f"no model of the settings has the vocabulary of {endpoint.model!r}")
        return Translated(engine, self.target, there)


def vocabularies(settings: Settings) -> dict[str, Vocabularies]:
    """Return each model's, by its name. Raise as Vocabularies."""
    load = cache(_load)
    return {name: Vocabularies(model, settings.hosts, load) for name, model in settings.served.items()}


def _load(model: str) -> Tokenizer:
    return Tokenizer.load(model_folder(model))
