"""A model of the API: its card, its vocabularies, and the executor that drives its requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tandem.app.api.http.backend import ModelCard, ModelPart
from tandem.app.parts import Role, part
from tandem.app.settings import Settings
from tandem.app.vocabularies import Vocabularies
from tandem.cluster.wire.peers import Peers
from tandem.deployments.control.router import RouterLive, RouterPlan
from tandem.deployments.control.router_client import RouterClient
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.sections import of_modes
from tandem.deployments.pools.engines import context_of
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.pools import DRAFTER, EXPANDER, MIDDLE, VERIFIER
from tandem.deployments.request.session import Reach
from tandem.deployments.routing.models import RoutedModel
from tandem.engine.base import Engine
from tandem.engine.sketch import sketch_format

ROLES: dict[str, Role] = {VERIFIER: "target", MIDDLE: "target", DRAFTER: "drafter", EXPANDER: "expander"}
"""Roles of the models of pools."""


def routed(settings: Settings) -> list[RoutedModel]:
    """Return the models as routers know them."""
    models = []
    for name, model in settings.served.items():
        engine, named = model.verifier.engine, settings.models.get(name)
        price = named.price if named else None
        suffix, adapters = settings.suffix(name), tuple(model.adapters)
        models.append(RoutedModel(name, suffix, engine.batch_limit, engine.places, price, adapters))
    return models


def router_plan(settings: Settings) -> RouterPlan:
    """Return the models and settings of the application's router."""
    live = RouterLive(**{key: getattr(settings, key) for key in RouterLive.model_fields})
    return RouterPlan(routed(settings), live)


def parts(settings: Settings, model: str) -> tuple[ModelPart, ...]:
    """Return the parts of a model of the settings. Reads the headers of their files."""
    pools = settings.served[model].pools
    found = [part(role, pools[pool].engine) for pool, role in ROLES.items() if pool in pools]
    helping = [host for host in settings.hosts if not host.serves or model in host.serves]
    found += [
        part("device", engine, tuple(device.name for device in host.devices))
        for host in helping
        for engine in host.engines
    ]
    return tuple(dict.fromkeys(found))  # a split model's layers between are the target's


class Served:
    """A model at one replica of the API.

    cards: as clients see it, and it with each of its adapters.
    vocabularies: its own, and those of its drafters and devices.
    executor: drives its requests.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        vocabularies: Vocabularies,
        peers: Peers,
        router: RouterClient,
        report: Callable[[Report], object],
        lost: Callable[[EndpointInfo], object],
    ) -> None:
        model, tokenizer = settings.served[name], vocabularies.target
        self.vocabularies, self._peers = vocabularies, peers
        context = context_of(model.verifier.engine)
        card = ModelCard(
            id=name,
            context=context,
            vocabulary=tokenizer.vocabulary,
            aliases=model.aliases,
            parts=parts(settings, name),
        )
        self.cards = (
            card,
            *(card.model_copy(update={"id": each, "aliases": (), "parent": name}) for each in model.adapters),
        )
        self.executor = Executor(
            router.assign,
            Reach(self.dial, lost, replaces=router.replaces),
            of_modes(settings),
            Services(
                partial(router.ask_mode, name),
                partial(router.tell_mode, name),
                format=sketch_format(tokenizer),
            ),
            settings.limits.limits(),
            report,
            model=name,
            reconsider=router.reconsider,
        )
        self.executor.compares = settings.router.compares

    async def dial(self, endpoint: EndpointInfo) -> Engine:
        """Return an endpoint's engine, driven in the tokens of this model. Raises as `Peers.engine`, and
        UnknownVocabulary."""
        engine = await self._peers.engine(endpoint.address, endpoint.engine)
        return self.vocabularies.spoken(engine, endpoint)
