"""`GET /`: a page for people with a browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from tandem.app.api.http.backend import ModelCard

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Tandem</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }}
pre {{ background: #f2f2f2; padding: 1rem; overflow: auto }}</style>
<h1>Tandem</h1>
<p>Language models served from the cloud and from devices at once, behind an OpenAI-compatible API. Here answers:
{models}.</p>
<pre>{example}</pre>
<ul>
<li><a href="docs">All endpoints and fields</a> (<a href="openapi.json">as OpenAPI</a>)
<li><a href="readyz">What is up</a>
<li><a href="v1/models">Models</a>, <a href="v1/devices">devices</a>, <a href="metrics">metrics</a>
</ul>
</html>
"""


def front_page(models: Sequence[ModelCard], address: str) -> str:
    """Return the page's HTML. address: URL at which it was requested."""
    body = {"model": models[0].id, "messages": [{"role": "user", "content": "Hello!"}]} if models else {}
    example = f"curl {address}v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'"
    names = ", ".join(f"<b>{escape(card.id)}</b> ({card.context} tokens)" for card in models)
    return _PAGE.format(models=names or "nothing yet", example=escape(example))
