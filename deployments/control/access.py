"""Access: keys, the terms of accounts, and what they have cost; the one writer of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve

from tandem.deployments.access.accounts import Accounts, Statement
from tandem.deployments.access.guard_note import GuardNote
from tandem.deployments.access.kept.responses import KeptResponses, KeptSettings
from tandem.deployments.access.kept.streams import Outcome, StreamCopies, StreamCopy, StreamNews
from tandem.deployments.access.key_service import KeyService
from tandem.deployments.access.keys import Caller, Key, KeyRefused, Role
from tandem.deployments.access.quota import Standing
from tandem.deployments.access.store import BillBatch, LeaseLost, LedgerError
from tandem.deployments.access.teams import TeamStatement
from tandem.deployments.access.usage import Usage, UsageQuery
from tandem.deployments.config.reconfigure import Live, in_place
from tandem.deployments.config.settings import AccountSettings, LedgerSettings
from tandem.deployments.control.calls import refuses
from tandem.deployments.messages import carry_messages


class AccessLive(Live):
    """Settings that Access takes over while it runs.

    accounts: the terms of new accounts.
    """

    accounts: AccountSettings = AccountSettings()


@refuses(KeyRefused, LedgerError, superseded=(LeaseLost,))
class Access:
    """The key service as a deployment, which also keeps responses and copies of resumable streams for a while.

    Raises LedgerError at the start as KeyService.open.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, live: AccessLive, ledger: LedgerSettings, responses: KeptSettings, resume_s: float = 0.0
    ) -> None:
        carry_messages()
        self._started, self._accounts = live, Accounts(live.accounts)
        note = GuardNote(serve.get_replica_context().app_name)
        self._service = KeyService(ledger, self._accounts, note=note)
        await self._service.open()
        self._responses, self._streams = KeptResponses(responses), StreamCopies(resume_s)

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Take over Serve's `user_config`, as AccessLive."""
        if (now := in_place(self._started, config)) is not None:
            self._accounts.follow(now.accounts)

    async def caller(self, hashed: str | None) -> Caller | None:
        """Return who shows the key with that hash, see KeyService.caller."""
        return self._service.caller(hashed)

    async def standing(self, account: str) -> Standing:
        """Return what an account and its team have spent, see KeyService.standing."""
        return self._service.standing(account)

    async def has_device(self, name: str) -> bool:
        """Return whether the device of that name has a key."""
        return self._service.has_device(name)

    async def charge(self, batch: BillBatch) -> dict[str, Standing]:
        """Book bills, once however often they are sent, see KeyService.booked."""
        return await self._service.booked(batch)

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """Return booked usage, see KeyService.usage."""
        return await self._service.usage(query)

    async def account(self, key: str) -> Statement:
        """Return an account's usage and terms, see KeyService.statement."""
        return self._service.statement(key)

    async def settle(self, key: str, changes: Mapping[str, Any]) -> Statement:
        """Change an account's terms, see KeyService.settle."""
        return await self._service.settle(key, changes)

    async def keys(self) -> list[Key]:
        """Return all keys, the oldest first."""
        return self._service.keys()

    async def make_key(self, name: str, role: Role, changes: Mapping[str, Any], team: str) -> tuple[Key, str]:
        """Make a key, see KeyService.make."""
        return await self._service.make(name, role, changes, team)

    async def rotate_key(self, id: str, grace_s: float) -> tuple[Key, str]:
        """Give a key a new secret, see KeyService.rotate."""
        return await self._service.rotate(id, grace_s)

    async def change_key(
        self, id: str, name: str | None, role: Role | None, changes: Mapping[str, Any], team: str | None
    ) -> Key:
        """Change a key, see KeyService.change."""
        return await self._service.change(id, name, role, changes, team)

    async def revoke_key(self, id: str) -> Key:
        """Revoke a key, see KeyService.revoke."""
        return await self._service.revoke(id)

    async def teams(self) -> list[TeamStatement]:
        """Return all teams, by name."""
        return self._service.teams()

    async def make_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        """Make a team, see KeyService.make_team."""
        return await self._service.make_team(name, changes)

    async def change_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        """Change a team's limits, see KeyService.change_team."""
        return await self._service.change_team(name, changes)

    async def remove_team(self, name: str) -> None:
        """Remove a team, see KeyService.remove_team."""
        await self._service.remove_team(name)

    async def keep_response(self, account: str, id: str, body: bytes) -> bool:
        """Keep a response for a while, see KeptResponses.keep."""
        return await self._responses.keep(account, id, body)

    async def kept_response(self, account: str, id: str) -> bytes | None:
        """Return a response, see KeptResponses.get."""
        return await self._responses.get(account, id)

    async def drop_response(self, account: str, id: str) -> bool:
        """Forget a response, see KeptResponses.drop."""
        return await self._responses.drop(account, id)

    async def keep_streams(self, owner: str, news: Sequence[StreamNews]) -> list[Outcome]:
        """Keep news of resumable streams, see StreamCopies.take."""
        return await self._streams.take(owner, news)

    async def claim_stream(self, account: str, id: str, owner: str) -> StreamCopy | None:
        """Return the copy of a stream to its new owner, see StreamCopies.claim."""
        return await self._streams.claim(account, id, owner)

    async def forget_streams(self, streams: Sequence[tuple[str, str]]) -> None:
        """Forget streams, see StreamCopies.forget."""
        await self._streams.forget(streams)

    async def check_health(self) -> None:
        """Raise if a loop has ended, so that Serve replaces the replica."""
        self._service.check()

    async def __del__(self) -> None:
        await self._service.close()
