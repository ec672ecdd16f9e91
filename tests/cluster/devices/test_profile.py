from __future__ import annotations

import pytest

from tandem.cluster.devices.profile import (
    ProfileError,
    UnknownProfile,
    load_profile,
    parse_profile,
    profile_names,
)


def test_every_file_loads_under_its_name() -> None:
    assert len(profile_names()) >= 6
    for name in profile_names():
        profile = load_profile(name)
        assert profile.name == name
        assert profile.source
        assert profile.emulated == (name != "native")


def test_speeds() -> None:
    phone = load_profile("pixel7pro-bloom1b1")
    assert phone.prefill_s(3132) == pytest.approx(100.0)
    assert phone.decode_s(1393) == pytest.approx(100.0)
    assert load_profile("native").decode_s(5) == 0.0


def test_unknown() -> None:
    with pytest.raises(UnknownProfile, match=r"'iphone'.*native.*xiaomi14"):
        load_profile("iphone")
    with pytest.raises(UnknownProfile):
        load_profile("../configs/native")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("prefill_tokens_per_s: 0", "prefill_tokens_per_s must be above 0"),
        ("prefill_tokens_per_s: 5", "must both be given"),
        ("power_w: -1", "power_w must be 0 or more"),
        ("sessions: 0", "sessions must be at least 1"),
        ("batch: 0", "batch must be at least 1"),
        ("sessions: many", r"Expected `int`, got `str` - at `\$.sessions`"),
        ("speed: 3", "unknown field `speed`.*keys: .*decode_tokens_per_s"),
        ("name: [", "file.yaml"),
    ],
)
def test_errors_name_the_key(line: str, told: str) -> None:
    text = f"name: x\nhardware: x\nmodel: x\nsource: x\n{line}"
    with pytest.raises(ProfileError, match=told):
        parse_profile(text, "file.yaml")


def test_missing_key() -> None:
    with pytest.raises(ProfileError, match="`hardware`"):
        parse_profile("name: x")
