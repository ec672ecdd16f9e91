"""The whole application: its deployments and their connections.

    client ── HTTP ──▶ Ingress ──(assign, report)──▶ Router ──(snapshot)──▶ Scheduler ◀──(register)── device hosts
                          ├──(operators' orders)────────────────────────────▶  │                         ▲
                          ├──(caller, charge)──▶ Access: keys, accounts        │(list)                   ▲
                          │                                                    ▼                         │
                          └────────── the wire: tokens ──▶ Verifier, Drafter, Expander                   │
                          └────────── the wire: tokens ──────────────────────────────────────────────────┘

    A device that is a program of its own dials the Gateway, which passes on what others want of it, and what it wants
    of Verifier and Middle: drafts, tokens, hidden states.

Arrows in brackets are Serve handles, a few calls a request; the wire carries every token (see `cluster`).
"""

# No `from __future__ import annotations` here: Serve reads build()'s annotation to validate `args`.
import secrets
import warnings
from typing import Any

import ray
from ray import serve
from ray.experimental import internal_kv
from ray.serve import Application, Deployment
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from tandem.app.exposure import check_serve
from tandem.app.ingress import Ingress, IngressLive
from tandem.app.served import router_plan
from tandem.app.settings import AnyEngine, AnyPool, Pool, Settings
from tandem.deployments.config.reconfigure import Live
from tandem.deployments.control.access import Access, AccessLive
from tandem.deployments.control.router import Router, RouterLive
from tandem.deployments.control.scheduler import Scheduler, SchedulerLive
from tandem.deployments.gateway.deployment import Gateway
from tandem.deployments.pools.autoscaling import EVERY_S
from tandem.deployments.pools.deployments import Drafter, Expander, Middle, Verifier
from tandem.deployments.pools.serve_policy import ServePolicy
from tandem.deployments.request.pools import DRAFTER, EXPANDER, MIDDLE, VERIFIER, pool_name


def build(args: Settings) -> Application:
    """The application that the settings describe; `tandem.app.main:build` in a Serve YAML.

    Raises ValueError if it must not be served here: see `application` and `check_serve`.
    """
    check_serve(args.api)
    return application(args)


def application(args: Settings) -> Application:
    """Return the deployments that the settings describe, bound to each other.

    Raises ValueError without any setting: Serve ignores a misspelt `args`, and the defaults ask for no API key.
    """
    if not args.model_fields_set:
        raise ValueError(
            "no settings, is `args` misspelt? Where the defaults will do, say one: `model: tandem`"
        )
    if args.endpoint.token is None:
        endpoint = args.endpoint.model_copy(update={"token": _secret()})
        args = args.model_copy(update={"endpoint": endpoint})

    pools = {
        pool_name(pool, suffix): _pool(pool, suffix, settings, args.engine(pool, model), args)
        for name, model in args.served.items()
        for suffix in (args.suffix(name),)
        for pool, settings in model.pools.items()
    }
    scheduler = _control(serve.deployment(Scheduler)).bind(pools, args.hosts, args.endpoint)
    live = AccessLive(accounts=args.accounts)
    access = _control(serve.deployment(Access)).bind(live, args.ledger, args.api.responses, args.api.resume_s)
    plan = router_plan(args)
    router = _control(serve.deployment(Router)).bind(scheduler, access, *plan)
    gateway = None
    if args.gateway is not None:
        gateway = _control(serve.deployment(Gateway), args.gateway.replicas).bind(
            router, access, scheduler, args.gateway, args.endpoint, args.limits, plan
        )
    ingress = _control(Ingress, args.ingress_replicas, drain_s=args.api.drain_s)
    return ingress.bind(router, access, scheduler, args, gateway)


def _secret() -> str:
    """Return the secret of connections between replicas and devices: one per cluster, as an application's next version
    and its devices go on with answers that the last one began."""
    new = secrets.token_urlsafe(24)
    if not ray.is_initialized():
        return new
    internal_kv._internal_kv_put(SECRET, new.encode(), overwrite=False)
    return str(internal_kv._internal_kv_get(SECRET).decode())


def _pool(pool: str, suffix: str, settings: AnyPool, engine: AnyEngine, args: Settings) -> Application:
    """Replicas with an engine each; a drain waits for their sessions, which Serve does not see."""
    deployment = DEPLOYMENTS[pool]
    return deployment.options(
        name=pool_name(deployment.name, suffix),
        **_size(settings),
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        graceful_shutdown_timeout_s=args.endpoint.drain_s + 5.0,
        max_surge_percent=settings.surge_percent,
        **WATCHED,
    ).bind(pool, engine, args.endpoint)


def _size(pool: Pool) -> dict[str, Any]:
    """Return the number of replicas as Serve options. A pool's policy applies the delays itself."""
    if (bounds := pool.autoscaling) is None:
        return {"num_replicas": 1 if pool.replicas is None else pool.replicas}
    with warnings.catch_warnings():
        # It would otherwise need an environment variable in each replica's process.
        warnings.filterwarnings("ignore", "The `metrics_interval_s` field", DeprecationWarning)
        config = AutoscalingConfig(
            min_replicas=bounds.min_replicas,
            initial_replicas=pool.replicas,  # None: as many as there are, in a new version too
            max_replicas=bounds.max_replicas,
            metrics_interval_s=EVERY_S,
            look_back_period_s=5 * EVERY_S,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=AutoscalingPolicy(
                policy_function=f"{ServePolicy.__module__}:{ServePolicy.__qualname__}",
                policy_kwargs={"settings": bounds.model_dump(mode="json")},
            ),
        )
    return {"num_replicas": None, "autoscaling_config": config}


# `Any`: mypy takes a decorated class for the class (python/mypy#3135).
def _control(deployment: Any, replicas: int = 1, drain_s: float = 20.0) -> Deployment:
    """Replicas that mostly wait for others: any number of requests at once. A successor answers before its predecessor
    goes. drain_s: for requests under way when a replica is replaced."""
    return deployment.options(
        num_replicas=replicas,
        ray_actor_options={"num_cpus": 0.1},
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=drain_s,
        max_surge_percent=100,
        **WATCHED,
    )


# A replica that died is noticed at its next health check, and only then replaced. One that does not answer may wait for
# the processor; requests avoid it meanwhile, by signs of life of their own.
WATCHED = {
    "health_check_period_s": 1.0,
    "health_check_timeout_s": 120.0,
    "graceful_shutdown_wait_loop_s": 0.5,
}
DEPLOYMENTS: dict[str, Any] = {VERIFIER: Verifier, DRAFTER: Drafter, EXPANDER: Expander, MIDDLE: Middle}
"""Deployments, by pool."""
LIVE: dict[str, type[Live]] = {
    "Access": AccessLive,
    "Ingress": IngressLive,
    "Router": RouterLive,
    "Scheduler": SchedulerLive,
}
"""Settings that deployments take over while they run, as `user_config` in the Serve YAML."""
SECRET = b"tandem secret"
"""Key in the cluster's store."""
