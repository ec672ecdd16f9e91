"""The ring of keys: what opens them, and that somebody stays in charge."""

from __future__ import annotations

import pytest

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import KeyRefused, Keyring, NoSuchKey, Role, digest

TERMS = Terms(0.5, 1e-7)


def ring() -> tuple[Keyring, str, str]:
    """(a ring with an operator's and a user's key, their secrets)"""
    made = Keyring()
    _, _, operator = made.make("boss", Role.OPERATOR, TERMS, 1.0)
    _, _, user = made.make("app", Role.USER, TERMS, 2.0)
    return made, operator, user


def test_a_secret_opens_its_key_and_nothing_else() -> None:
    made, operator, user = ring()
    for secret, name in ((operator, "boss"), (user, "app")):
        key = made.holder(digest(secret), 3.0)
        assert key is not None
        assert key.name == name
        assert secret.endswith(key.hint)
        assert made.holder(digest(secret[:-1]), 3.0) is None
        assert made.holder(secret, 3.0) is None
    assert operator not in repr(made.__dict__)
    assert user not in repr(made.__dict__)


def test_the_first_key_is_an_operators() -> None:
    with pytest.raises(KeyRefused, match="operator"):
        Keyring().make("app", Role.USER, TERMS, 0.0)


def test_an_operator_whose_key_expires_is_not_in_charge_for_long() -> None:
    passing = Terms(0.5, 1e-7, expires_s=100.0)
    with pytest.raises(KeyRefused, match="expire"):
        Keyring().make("guest", Role.OPERATOR, passing, 0.0)
    made, operator, _ = ring()
    made.make("guest", Role.OPERATOR, passing, 3.0)
    boss = made.holder(digest(operator), 3.0)
    assert boss is not None
    with pytest.raises(KeyRefused):
        made.revoke(boss.id)
    with pytest.raises(KeyRefused):
        made.change(boss.id, "boss", Role.OPERATOR, passing)


def test_the_last_operator_stays() -> None:
    made, operator, _ = ring()
    boss = made.holder(digest(operator), 3.0)
    assert boss is not None
    with pytest.raises(KeyRefused):
        made.revoke(boss.id)
    with pytest.raises(KeyRefused):
        made.change(boss.id, "boss", Role.USER, TERMS)
    assert made.holder(digest(operator), 3.0) == boss
    made.make("other", Role.OPERATOR, TERMS, 4.0)
    made.revoke(boss.id)
    assert made.holder(digest(operator), 3.0) is None


def test_the_very_last_key_may_go() -> None:
    made = Keyring()
    key, _, _ = made.make("boss", Role.OPERATOR, TERMS, 1.0)
    made.revoke(key.id)
    assert len(made) == 0


def test_rotation_leaves_the_old_secret_its_grace() -> None:
    made, _, user = ring()
    key = made.holder(digest(user), 3.0)
    assert key is not None
    rotated, _, new = made.rotate(key.id, 10.0, grace_s=5.0)
    assert rotated.id == key.id
    for now_s, old_opens in ((14.9, True), (15.0, False)):
        assert (made.holder(digest(user), now_s) is not None) is old_opens
        assert made.holder(digest(new), now_s) == rotated
    made.rotate(key.id, 20.0)
    assert made.holder(digest(new), 20.0) is None


def test_an_expired_key_opens_nothing() -> None:
    made, _, _ = ring()
    _, _, secret = made.make("guest", Role.USER, Terms(0.5, 1e-7, expires_s=100.0), 3.0)
    assert made.holder(digest(secret), 99.9) is not None
    assert made.holder(digest(secret), 100.0) is None


def test_an_unknown_key_is_named() -> None:
    made, _, _ = ring()
    for call in (made.revoke, made.key, lambda id: made.rotate(id, 0.0)):
        with pytest.raises(NoSuchKey, match="key-none"):
            call("key-none")


def test_a_copy_changes_nothing() -> None:
    made, _, user = ring()
    key = made.holder(digest(user), 3.0)
    assert key is not None
    made.copy().revoke(key.id)
    assert made.holder(digest(user), 3.0) == key


# -- devices --------------------------------------------------------------------------------------------


def test_a_devices_key_does_not_guard_the_api() -> None:
    made = Keyring()
    assert not made.guards_api
    _, _, secret = made.make("phone", Role.DEVICE, TERMS, 1.0)
    assert not made.guards_api
    with pytest.raises(KeyRefused, match="operator"):
        made.make("app", Role.USER, TERMS, 2.0)
    made.make("boss", Role.OPERATOR, TERMS, 3.0)
    assert made.guards_api
    holder = made.holder(digest(secret), 4.0)
    assert holder is not None
    assert (holder.name, holder.role) == ("phone", Role.DEVICE)


def test_a_device_is_not_in_charge() -> None:
    made, operator, user = ring()
    phone, _, _ = made.make("phone", Role.DEVICE, TERMS, 3.0)
    boss, app = made.holder(digest(operator), 3.0), made.holder(digest(user), 3.0)
    assert boss is not None
    assert app is not None
    with pytest.raises(KeyRefused):
        made.revoke(boss.id)
    made.revoke(app.id)
    made.revoke(boss.id)
    assert not made.guards_api, "the last key that opened the API may go, whatever devices have"
    assert list(made.keys) == [phone.id]
    made.revoke(phone.id)
    assert not made.keys


def test_every_device_has_a_name_of_its_own() -> None:
    made, _, _ = ring()
    phone, _, _ = made.make("phone", Role.DEVICE, TERMS, 3.0)
    with pytest.raises(KeyRefused, match=phone.id):
        made.make("phone", Role.DEVICE, TERMS, 4.0)
    for wrong in ("", "my phone", "drafter", "any"):
        with pytest.raises(KeyRefused, match="cannot name a device|meaning of its own"):
            made.make(wrong, Role.DEVICE, TERMS, 4.0)
    made.make("app", Role.DEVICE, TERMS, 4.0)  # no other device's, though a user's
    made.make("phone", Role.USER, TERMS, 4.0)
    made.revoke(phone.id)
    made.make("phone", Role.DEVICE, TERMS, 5.0)


def test_a_devices_key_stays_what_it_is() -> None:
    made, operator, user = ring()
    phone, _, _ = made.make("phone", Role.DEVICE, TERMS, 3.0)
    for role in (Role.USER, Role.OPERATOR):
        with pytest.raises(KeyRefused, match="stays one"):
            made.change(phone.id, "phone", role, TERMS)
    made.make("second", Role.OPERATOR, TERMS, 4.0)
    for secret in (operator, user):
        key = made.holder(digest(secret), 4.0)
        assert key is not None
        with pytest.raises(KeyRefused, match="no other key becomes one"):
            made.change(key.id, "tablet", Role.DEVICE, TERMS)
    with pytest.raises(KeyRefused, match="keeps its name"):
        made.change(phone.id, "tablet", Role.DEVICE, TERMS)
    assert made.key(phone.id) == phone
    assert made.change(phone.id, "phone", Role.DEVICE, Terms(0.25, 1e-7)).terms.budget == 0.25


def test_a_device_may_use_itself_alone() -> None:
    made, _, _ = ring()
    with pytest.raises(KeyRefused, match="that device alone"):
        made.make("phone", Role.DEVICE, Terms(0.5, 1e-7, devices=("phone", "laptop")), 3.0)
    phone, _, _ = made.make("phone", Role.DEVICE, TERMS, 3.0)
    assert phone.terms.devices == ("phone",)
    with pytest.raises(KeyRefused, match="that device alone"):
        made.change(phone.id, "phone", Role.DEVICE, Terms(0.5, 1e-7, devices=("laptop",)))
    for devices in (None, ("phone",)):
        changed = made.change(phone.id, "phone", Role.DEVICE, Terms(0.5, 1e-7, devices=devices))
        assert changed.terms.devices == ("phone",)
