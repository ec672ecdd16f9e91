"""Settings of a service."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.engine.service.fake_service import KEY_NAME, config


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"base_url": "api.example.com"}, "an address looks like"),
        ({"base_url": "ftp://api.example.com"}, "an address looks like"),
        ({"base_url": "https://me:secret@api.example.com/v1"}, "no password"),
        ({"price_in": 1.0}, "go together"),
        ({"prefix": "assistant"}, "route: chat"),
        ({"api_key_env": "sk-not a name"}, "match pattern"),
        ({"extensions": {"top_q": "top_q"}}, "top_q"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        config(**settings)  # type: ignore[arg-type]


def test_how_it_continues_follows_from_the_route() -> None:
    assert config().continuation == "anew"
    assert config(route="chat").continuation == "none"
    assert config(route="chat", prefix="prefix").continuation == "anew"


def test_a_missing_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config().key() is None
    with pytest.raises(ValueError, match=f"{KEY_NAME} is not set"):
        config(api_key_env=KEY_NAME).key()
    monkeypatch.setenv(KEY_NAME, " x \n")
    assert config(api_key_env=KEY_NAME).key() == "x"
