"""Refusal of an API that other machines reach without TLS: keys, prompts and answers would be there for all to read."""

from __future__ import annotations

import os
from typing import Any

from tandem.app.api.http.settings import ApiSettings
from tandem.cluster.wire.address import is_loopback


def check_exposure(host: str, encrypted: bool, insecure: bool) -> None:
    """Raise ValueError if the API listens beyond this machine without TLS, unless the settings allow it.

    host: on which it listens.
    encrypted: whether it speaks TLS.
    insecure: the setting `api.insecure`.
    """
    if not (encrypted or insecure or is_loopback(host)):
        raise ValueError(
            f"listening on {host}, beyond this machine, needs TLS: name a certificate (api.tls, or --tls-cert and "
            "--tls-key), or say api.insecure: true (--insecure) where a proxy in front speaks TLS"
        )


def check_serve(api: ApiSettings) -> None:
    """Raise ValueError if the Serve that runs here shows this API to other machines without TLS, or cannot do what its
    settings say. Serve ignores a misspelt `http_options`, and listens on every interface then.

    Checks nothing where no Serve runs.
    """
    import ray  # not where a command line reads settings first: its environment must be set by then
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    if not ray.is_initialized():
        return
    try:
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
    except ValueError:
        return
    options: Any = ray.get(controller.get_http_config.remote())
    if api.tls is not None:
        raise ValueError(
            "api.tls is for `tandem up`; with `serve deploy`, write http_options.ssl_certfile and ssl_keyfile"
        )
    if options.ssl_certfile and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        raise ValueError(
            "http_options.ssl_certfile: Serve's HAProxy does not speak TLS, and the replicas behind it would; start "
            "Ray without RAY_SERVE_ENABLE_HA_PROXY=1"
        )
    check_exposure(options.host, bool(options.ssl_certfile), api.insecure)
