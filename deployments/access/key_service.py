"""Keys, accounts and the ledger as one. Memory answers; what changes is on disk before it is confirmed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tandem.deployments.access.accounts import ANONYMOUS, Accounts, Statement, Terms, device_of
from tandem.deployments.access.databases.place import told
from tandem.deployments.access.keys import Caller, Key, KeyRefused, Keyring, NoSuchKey, Role
from tandem.deployments.access.quota import Quota, Standing, Team
from tandem.deployments.access.store import BillBatch, LeaseLost, Ledger, LedgerError
from tandem.deployments.access.teams import Teams, TeamStatement
from tandem.deployments.access.usage import Usage, UsageQuery, recent
from tandem.deployments.config.settings import LedgerSettings
from tandem.deployments.request.bill import Charge

if TYPE_CHECKING:  # it needs Ray, which a simulation does without
    from tandem.deployments.access.guard_note import GuardNote

logger = logging.getLogger("ray.serve")

T = TypeVar("T")
Q = TypeVar("Q", bound=Quota)

WATCH_S = 1.0
"""Seconds between two looks at the ledger: while one service replaces another, both are there, and one of them
writes."""
LEASE_S = 5.0
"""Seconds after which the ledger of a service that no longer looks may be taken over, or taken back."""

LIMITS = tuple(f.name for f in fields(Terms) if f.name not in ("budget", "exchange_rate", "per"))


class KeyService:
    """accounts: which it opens at the start as the ledger has them. now_s: seconds since the epoch. note: of whether
    keys guard the API; None: nothing is noted, nor refused for it."""

    def __init__(
        self,
        settings: LedgerSettings,
        accounts: Accounts,
        now_s: Callable[[], float] = time.time,
        note: GuardNote | None = None,
    ) -> None:
        self._place, self._may_be_open = settings.place, settings.open
        self._accounts, self._now_s, self._note = accounts, now_s, note
        self._noted: str | None = None
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._ring, self._teams = Keyring(), Teams()
        self._settled: dict[str, Terms] = {}  # of accounts without a key, where they were changed
        self._batches: list[BillBatch] = []  # that are not written yet
        self._last: dict[str, int] = {}  # the latest batch by sender
        self._failed: LedgerError | None = None  # the latest write of bills
        self._stale = False  # the ledger knows better than memory
        self._writing: asyncio.Task[None] | None = None
        # A change is written before the next one is made, and before anything is read.
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Raises LedgerError, also where keys have guarded the API, none would now, and no setting allows it."""
        self._ledger = await self._aside(Ledger, self._place)
        await self._read()
        if self._note is not None:
            self._noted = await self._aside(self._note.read)
            if self._noted and not (self._ring.guards_api or self._may_be_open):
                raise LedgerError(
                    f"keys in {self._noted} have guarded the API, and there are none in {told(self._place)}: if "
                    "everybody on this machine shall be an operator again, set ledger.open to true"
                )
        await self._aside(self._ledger.take_lease, self._now_s() + LEASE_S)
        await self._read()  # what another service has written until now
        await self._note_guard()
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        logger.info("ledger %s: %d keys", told(self._place), len(self._ring))

    async def close(self) -> None:
        """Write what is not on disk yet, and let a successor write. Raises LedgerError where it cannot be written."""
        self._watching.cancel()
        if self._writing is not None:  # what is being written must not be broken off, nor written twice
            await self._writing
        try:
            await self._write()
            await self._aside(self._ledger.free_lease)
        except LeaseLost:
            logger.info("another service has taken over the ledger")  # and has got what was not written here
        finally:
            await self._aside(self._ledger.close)
            self._thread.shutdown()

    def caller(self, hashed: str | None) -> Caller | None:
        """Return the caller whose key has that hash; None if there is none. If the API needs no key, callers without
        one are anonymous, but a device is known by its own."""
        key = None if hashed is None else self._ring.holder(hashed, self._now_s())
        if key is not None:
            spent, team = self.standing(key.id)
            return Caller(key.id, key.role, key.terms, keyed=True, name=key.name, spent=spent, team=team)
        if self._ring.guards_api:
            return None
        return Caller(
            ANONYMOUS, Role.OPERATOR, self._accounts.terms, keyed=False, settled=dict(self._settled)
        )

    def standing(self, account: str) -> Standing:
        """Return what a key and its team have spent so far; nothing for other accounts."""
        key, now_s = self._ring.keys.get(account), self._now_s()
        if key is None:
            return Standing()
        spent = None if key.terms.usd is None else self._accounts.of(account).spent(now_s)
        return Standing(spent, self._teams.limits(key.team, now_s))

    def statement(self, account: str) -> Statement:
        """Return the usage of that account, without opening one."""
        return self._accounts.statement(account, self._now_s())

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """Return what was asked for, of all that is booked. Raises LedgerError."""
        await self.written()
        return await self._aside(self._ledger.usage, query)

    def charge(self, batch: BillBatch) -> None:
        """Book bills, once however often they are sent; `written` returns when they are on disk."""
        if batch.number > self._last.get(batch.sender, 0):
            self._last[batch.sender] = batch.number
            self._batches.append(batch)
            for charge in batch.charges:
                # Else of a key that another service has just made, or that was revoked.
                self._stale |= not self._count(charge)
        if self._batches and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def booked(self, batch: BillBatch) -> dict[str, Standing]:
        """Book bills as `charge`; return, once they are on disk, what their accounts with limits of dollars have spent.
        Raises LedgerError."""
        self.charge(batch)
        await self.written()
        standings = {
            account: self.standing(account) for account in {charge.account for charge in batch.charges}
        }
        return {account: standing for account, standing in standings.items() if standing != Standing()}

    async def written(self) -> None:
        """Return when all bills are on disk. Raises LedgerError."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._batches:
            raise self._failed or LedgerError("bills wait to be written")

    async def settle(self, account: str, changes: Mapping[str, Any]) -> Statement:
        """Change an account's terms. Raises KeyRefused, LedgerError."""
        if account in self._ring.keys:
            await self.change(account, None, None, changes)
        elif not self._is_open(account):
            raise NoSuchKey(f"there is no account {account!r}")
        else:
            async with self._lock:
                terms = changed(self.statement(account).terms, changes)
                await self._aside(self._ledger.keep_terms, account, terms)
                self._accounts.of(account).terms = self._settled[account] = terms
        return self.statement(account)

    def _count(self, charge: Charge) -> bool:
        """Add a bill to its account and team; return whether the account exists."""
        if not self._is_open(charge.account):
            return False
        self._accounts.of(charge.account).charge(charge)
        if (key := self._ring.keys.get(charge.account)) is not None:
            self._teams.spend(key.team, charge.day, charge.bill.server_usd)
        return True

    def _is_open(self, account: str) -> bool:
        """Return whether the account exists: of a key that was not revoked, of a device, or the anonymous one."""
        return account in self._ring.keys or account == ANONYMOUS or device_of(account) is not None

    def has_device(self, name: str) -> bool:
        """Whether the device of that name has a key."""
        return self._ring.of_device(name) is not None

    def check(self) -> None:
        """Raise RuntimeError if nothing watches the ledger any more."""
        if self._watching.done():
            raise RuntimeError(f"a loop ended: {self._watching}")

    # -- keys -------------------------------------------------------------------------------------------

    def keys(self) -> list[Key]:
        """Return all keys, the oldest first."""
        return sorted(self._ring.keys.values(), key=lambda key: key.made_s)

    async def make(
        self, name: str, role: Role, changes: Mapping[str, Any], team: str = ""
    ) -> tuple[Key, str]:
        """Make a key; return it and its secret. Raises KeyRefused, LedgerError."""
        if self._place is None:
            raise KeyRefused("keys must outlive this process: set ledger.path to a file, or ledger.database")
        async with self._lock:
            ring, terms = self._ring.copy(), changed(self._accounts.terms, changes)
            key, secret, said = ring.make(
                name, role, terms, self._now_s(), team and self._teams.of(team).name
            )
            await self._aside(self._ledger.keep_key, key, [secret])
            self._take(ring, key)
        return key, said

    async def rotate(self, id: str, grace_s: float) -> tuple[Key, str]:
        """Return a key with a new secret; the old one stays valid for `grace_s`. Raises KeyRefused, LedgerError."""
        async with self._lock:
            ring = self._ring.copy()
            key, secrets, said = ring.rotate(id, self._now_s(), grace_s)
            await self._aside(self._ledger.keep_key, key, secrets)
            self._take(ring, key)
        return key, said

    async def change(
        self,
        id: str,
        name: str | None,
        role: Role | None,
        changes: Mapping[str, Any],
        team: str | None = None,
    ) -> Key:
        """Set what is not None; the team "" is none. Raises KeyRefused, LedgerError."""
        async with self._lock:
            ring = self._ring.copy()
            old = ring.key(id)
            team = team and self._teams.of(team).name
            key = ring.change(id, name or old.name, role or old.role, changed(old.terms, changes), team)
            await self._aside(self._ledger.keep_key, key)
            self._take(ring, key)
        return key

    async def revoke(self, id: str) -> Key:
        """Revoke a key; its usage stays in the store. Raises KeyRefused, LedgerError."""
        async with self._lock:
            ring = self._ring.copy()
            key = ring.revoke(id)
            await self._aside(self._ledger.drop_key, id)
            self._ring = ring
            self._accounts.close(id)
        return key

    def _take(self, ring: Keyring, key: Key) -> None:
        """Apply what has been written."""
        self._ring = ring
        self._accounts.of(key.id).terms = key.terms

    # -- teams ------------------------------------------------------------------------------------------

    def teams(self) -> list[TeamStatement]:
        """Return all teams, by name."""
        return [self._team(name) for name in sorted(self._teams.all)]

    async def make_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        """Make a team. Raises KeyRefused, LedgerError."""
        async with self._lock:
            self._teams.new(name)
            await self._keep_team(Team(name, changed(Quota(), changes)))
        await self._read()  # an earlier team of that name has spent dollars
        return self._team(name)

    async def change_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        """Change a team's limits. Raises KeyRefused, LedgerError."""
        async with self._lock:
            await self._keep_team(Team(name, changed(self._teams.of(name).quota, changes)))
        return self._team(name)

    async def remove_team(self, name: str) -> None:
        """Remove a team without keys; its usage stays in the store. Raises KeyRefused, LedgerError."""
        async with self._lock:
            self._teams.of(name)
            if keys := self._ring.of_team(name):
                raise KeyRefused(
                    f"keys belong to the team {name!r}: {', '.join(keys)}; revoke them, or change their team"
                )
            await self._aside(self._ledger.drop_team, name)
            self._teams.drop(name)

    async def _keep_team(self, team: Team) -> None:
        await self._aside(self._ledger.keep_team, team)
        self._teams.put(team)

    def _team(self, name: str) -> TeamStatement:
        return TeamStatement(
            self._teams.of(name), self._ring.of_team(name), self._teams.spent(name, self._now_s())
        )

    # -- reading ----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Take over all that the ledger knows."""
        async with self._lock:
            await self._read_locked()

    async def _read_locked(self) -> None:
        written = await self._aside(self._ledger.read, recent(self._now_s()))
        for gone in self._ring.keys.keys() - {key.id for key in written.keys}:
            self._accounts.close(gone)
        self._ring = Keyring(written.keys, written.secrets)
        self._settled = written.terms
        for account, terms in written.terms.items():
            self._accounts.of(account).terms = terms
        for key in written.keys:
            self._accounts.of(key.id).terms = key.terms
        for sender, number in written.last.items():
            self._last[sender] = max(number, self._last.get(sender, 0))
        self._accounts.clear_usage()
        for charge in written.bills:
            if self._is_open(charge.account):
                self._accounts.of(charge.account).bills[charge.device] = charge.bill
        for account, day, usd in written.spent:
            if self._is_open(account):
                self._accounts.of(account).spending.add(day, usd)
        self._teams = Teams(written.teams, written.team_spent)
        # Senders have repeated to another service what this one could not write.
        self._batches = [b for b in self._batches if b.number > written.last.get(b.sender, 0)]
        for charge in (charge for batch in self._batches for charge in batch.charges):
            self._count(charge)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                async with self._lock:  # nothing is written from what was known before the lease came back
                    now_s = self._now_s()
                    await self._aside(self._ledger.take_lease, now_s + LEASE_S, now_s)
                    if await self._aside(self._ledger.changed_elsewhere):
                        await self._read_locked()
                await self._note_guard()
            except LedgerError as error:
                logger.error("%s", error)

    async def _note_guard(self) -> None:
        """Note whether keys guard the API, if that has changed."""
        ledger = told(self._place) if self._ring.guards_api else None
        if self._note is not None and ledger != self._noted:
            await self._aside(self._note.write, ledger)
            self._noted = ledger

    # -- writing ----------------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        while self._batches:
            try:
                await self._write()
                self._failed = None
                if self._stale:
                    self._stale = False
                    await self._read()
            except LedgerError as error:  # senders repeat what was not written
                logger.error("%s", error)
                self._failed = error
                return

    async def _write(self) -> None:
        async with self._lock:
            batches, self._batches = self._batches, []
            if not batches:
                return
            try:
                booked = await self._aside(self._ledger.charge, batches)
            except LedgerError:
                self._batches = batches + self._batches
                raise
            self._stale |= booked < len(batches)  # another service had them before

    async def _aside(self, call: Callable[..., T], *args: object) -> T:
        """Run the call in the ledger's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args))


def changed(terms: Q, changes: Mapping[str, Any]) -> Q:
    """Return the limits with these changes; 0, or an empty list, removes a limit."""
    lifted = {name: value or None for name, value in changes.items() if name in LIMITS}
    return replace(terms, **{**changes, **lifted})
