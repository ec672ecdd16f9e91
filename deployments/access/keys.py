"""API keys: who may ask, in which role and on which terms. Only a hash of a key's secret is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from tandem.deployments.access.accounts import ANONYMOUS, Terms, account_of
from tandem.deployments.access.device_name import device_name
from tandem.deployments.access.quota import TeamLimits
from tandem.deployments.access.usage import Spent

PREFIX = "tandem-"
SECRET_BYTES = 32
"""Random bytes of a secret: too many to be guessed, so one round of SHA-256 hides it."""


class Role(StrEnum):
    """user: asks for answers, and sees its own account. operator: sees everything, and makes keys and terms. device:
    opens the gateway, and nothing of the API."""

    USER = "user"
    OPERATOR = "operator"
    DEVICE = "device"


class KeyRefused(ValueError):
    """The change would leave no administrator, or cannot be kept."""


class NoSuchKey(KeyRefused):
    """No key has this id."""


@dataclass(frozen=True, slots=True)
class Key:
    """id: by which it is called, and its account.
    name: whose it is, for people; a device's: what requests call it.
    hint: the end of its secret.
    made_s: when, seconds since the epoch.
    team: name of the team that it belongs to; "" for none.
    """

    id: str
    name: str
    role: Role
    terms: Terms
    hint: str
    made_s: float
    team: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of the API.

    account: who pays.
    keyed: it has shown a key; otherwise the API asks for none, and it must be on this machine.
    name: of its key, "" without one; a device's: what requests call it.
    settled: without a key, terms by account where they differ from these.
    spent: dollars in the period of its terms; None if these have no limit of dollars.
    team: limits that it shares with the other keys of its team; None without one.
    """

    account: str
    role: Role
    terms: Terms
    keyed: bool
    name: str = ""
    settled: Mapping[str, Terms] = field(default_factory=dict, compare=False)
    spent: Spent | None = None
    team: TeamLimits | None = None

    @property
    def tokens_per_minute(self) -> int | None:
        """Most tokens in a minute, of its own and its team's limit; None for no limit."""
        quotas = (self.terms,) if self.team is None else (self.terms, self.team.team.quota)
        return min((q.tokens_per_minute for q in quotas if q.tokens_per_minute is not None), default=None)

    def at(self, device: str | None) -> Caller:
        """Return the one who pays for a request with that device: without a key, the device's account."""
        account = account_of(device) if device is not None and self.account == ANONYMOUS else self.account
        return replace(self, account=account, terms=self.settled.get(account, self.terms))


class Secret(NamedTuple):
    """A hash that opens a key.

    until_s: how long, seconds since the epoch; None: until the key is revoked.
    """

    digest: str
    key: str
    until_s: float | None = None


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Keyring:
    """All keys. Times are seconds since the epoch."""

    def __init__(self, keys: Iterable[Key] = (), known: Iterable[Secret] = ()) -> None:
        self._keys = {key.id: key for key in keys}
        self._secrets = {secret.digest: secret for secret in known}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> Mapping[str, Key]:
        """Keys by id."""
        return self._keys

    def of_device(self, name: str) -> Key | None:
        """Return the key of the device of that name; None if it has none."""
        keys = self._keys.values()
        return next((key for key in keys if key.role is Role.DEVICE and key.name == name), None)

    @property
    def guards_api(self) -> bool:
        """Whether the API needs a key: as soon as one opens it. A device's does not, so that making one first does not
        lock its maker out."""
        return bool(self._openers())

    def copy(self) -> Keyring:
        """Return a copy, to be changed before the change is stored."""
        return Keyring(self._keys.values(), self._secrets.values())

    def key(self, id: str) -> Key:
        """Return the key of that id. Raises NoSuchKey."""
        if id not in self._keys:
            raise NoSuchKey(f"there is no key {id!r}")
        return self._keys[id]

    def holder(self, hashed: str, now_s: float) -> Key | None:
        """Return the key whose secret has that hash; None if there is none, or it has expired."""
        known = self._secrets.get(hashed)
        if known is None or not hmac.compare_digest(known.digest, hashed):
            return None
        if known.until_s is not None and known.until_s <= now_s:
            return None
        key = self._keys[known.key]
        expires_s = key.terms.expires_s
        return key if expires_s is None or now_s < expires_s else None

    def make(
        self, name: str, role: Role, terms: Terms, now_s: float, team: str = ""
    ) -> tuple[Key, Secret, str]:
        """Make a key; return it, its hashed secret and its secret. Raises KeyRefused, also for a first key that opens
        the API and is no operator's."""
        if role is Role.DEVICE:
            self._check_device(name)
            terms = _of_device(name, terms)
        elif not (_rules(role, terms) or self._rulers()):
            raise KeyRefused(
                "the first key must be an operator's that does not expire: with it, everybody without one is turned "
                "away"
            )
        said = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        key = Key(f"key-{secrets.token_hex(6)}", name, role, terms, said[-4:], now_s, team)
        self._keys[key.id] = key
        return key, self._opens(key, said), said

    def rotate(self, id: str, now_s: float, grace_s: float = 0.0) -> tuple[Key, list[Secret], str]:
        """Make a new secret for a key; the old ones stay valid for `grace_s` seconds. Raises KeyRefused."""
        key = self.key(id)
        said = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        until_s = now_s + grace_s
        changed = [
            old._replace(until_s=until_s if old.until_s is None else min(old.until_s, until_s))
            for old in self._secrets.values()
            if old.key == id
        ]
        self._secrets.update((old.digest, old) for old in changed)
        key = self._keys[id] = replace(key, hint=said[-4:])
        return key, [*changed, self._opens(key, said)], said

    def of_team(self, name: str) -> tuple[str, ...]:
        """Return the ids of a team's keys."""
        return tuple(key.id for key in self._keys.values() if key.team == name)

    def change(self, id: str, name: str, role: Role, terms: Terms, team: str | None = None) -> Key:
        """Change a key; its team stays if that is None. Raises KeyRefused."""
        old = self.key(id)
        if Role.DEVICE in (old.role, role):
            if role is not old.role:
                raise KeyRefused("a device's key stays one, and no other key becomes one: make a new one")
            if name != old.name:
                raise KeyRefused(f"the device keeps its name, {old.name!r}: make a new key for another one")
            terms = _of_device(name, terms)
        key = replace(old, name=name, role=role, terms=terms, team=old.team if team is None else team)
        if not _rules(role, terms):
            self._not_last(id)
        self._keys[id] = key
        return key

    def revoke(self, id: str) -> Key:
        """Revoke a key. Raises KeyRefused."""
        key = self.key(id)
        if self._openers() != [id]:  # with the last one gone, the API is open again, on this machine
            self._not_last(id)
        del self._keys[id]
        self._secrets = {hashed: known for hashed, known in self._secrets.items() if known.key != id}
        return key

    def _opens(self, key: Key, said: str) -> Secret:
        known = Secret(digest(said), key.id)
        self._secrets[known.digest] = known
        return known

    def _openers(self) -> list[str]:
        """Return the keys that open the API."""
        return [key.id for key in self._keys.values() if key.role is not Role.DEVICE]

    def _check_device(self, name: str) -> None:
        """Raises KeyRefused for a name that no device may have, or that another one has."""
        try:
            device_name(name)
        except ValueError as error:
            raise KeyRefused(str(error)) from None
        if (key := self.of_device(name)) is not None:
            raise KeyRefused(f"the device {name!r} has a key, {key.id}: rotate it, or revoke it first")

    def _rulers(self) -> list[str]:
        """Return the operators' keys that do not expire."""
        return [key.id for key in self._keys.values() if _rules(key.role, key.terms)]

    def _not_last(self, id: str) -> None:
        if self._rulers() == [id]:
            raise KeyRefused("it is the only operator's key that does not expire: make another one first")


def _rules(role: Role, terms: Terms) -> bool:
    """Return whether a key of this role and terms is an operator's that does not expire."""
    return role is Role.OPERATOR and terms.expires_s is None


def _of_device(name: str, terms: Terms) -> Terms:
    """Return the terms of a device's key, which is for that device alone. Raises KeyRefused."""
    if terms.devices not in (None, (name,)):
        raise KeyRefused(f"the key of the device {name!r} is for that device alone")
    return replace(terms, devices=(name,))
