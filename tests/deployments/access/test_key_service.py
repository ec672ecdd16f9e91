"""The key service: what is told holds after a restart, bills are written soon, and a failed write changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.deployments.access.accounts import ANONYMOUS, Accounts, Terms
from tandem.deployments.access.guard_note import GuardNote
from tandem.deployments.access.key_service import KeyService, changed
from tandem.deployments.access.keys import KeyRefused, NoSuchKey, Role, digest
from tandem.deployments.access.quota import Quota, Standing, Team, TeamLimits
from tandem.deployments.access.store import BillBatch, LeaseLost, Ledger, LedgerError
from tandem.deployments.access.teams import NoSuchTeam, TeamStatement
from tandem.deployments.access.usage import Spent, UsageQuery
from tandem.deployments.config.settings import LedgerSettings
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used


async def opened(path: Path | None, note: GuardNote | None = None, may_be_open: bool = False) -> KeyService:
    settings = LedgerSettings(path=path, open=may_be_open)
    treasury = KeyService(settings, Accounts(), now_s=lambda: 1000.0, note=note)
    await treasury.open()
    return treasury


def _names(treasury: KeyService) -> list[str]:
    return [key.name for key in treasury.keys()]  # noqa: SIM118


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


async def test_without_keys_anybody_is_an_operator(path: Path) -> None:
    treasury = await opened(path)
    for hashed in (None, digest("anything")):
        caller = treasury.caller(hashed)
        assert caller is not None
        assert (caller.account, caller.role, caller.keyed) == (ANONYMOUS, Role.OPERATOR, False)
        assert not caller.name
        assert caller.at("phone").account == "device-phone"
    await treasury.close()


async def test_a_device_is_known_by_its_key_and_nobody_needs_one_for_it(path: Path) -> None:
    treasury = await opened(path)
    key, secret = await treasury.make("phone", Role.DEVICE, {"concurrent": 2, "expires_s": 1001.0})
    device = treasury.caller(digest(secret))
    assert device is not None
    assert (device.account, device.role, device.keyed, device.name) == (key.id, Role.DEVICE, True, "phone")
    assert (device.terms, device.terms.concurrent) == (treasury.statement(key.id).terms, 2)
    for hashed in (None, digest("anything")):
        anybody = treasury.caller(hashed)
        assert anybody is not None
        assert (anybody.role, anybody.keyed) == (Role.OPERATOR, False)
    boss, _ = await treasury.make("boss", Role.OPERATOR, {})
    assert treasury.caller(None) is None
    assert treasury.caller(digest(secret)) == device
    await treasury.revoke(boss.id)
    assert treasury.caller(None) is not None
    await treasury.close()

    again = await opened(path)
    assert again.caller(digest(secret)) == device
    await again.close()


async def test_a_device_may_use_itself_whatever_its_terms_were(path: Path) -> None:
    treasury = await opened(path)
    key, _ = await treasury.make("phone", Role.DEVICE, {})
    for lifted in ((), ("phone",)):
        statement = await treasury.settle(key.id, {"devices": lifted})
        assert statement.terms.devices == treasury.statement(key.id).terms.devices == ("phone",)
    with pytest.raises(KeyRefused):
        await treasury.settle(key.id, {"devices": ("laptop",)})
    await treasury.close()


async def test_keys_terms_and_bills_survive_a_restart(path: Path) -> None:
    first = await opened(path)
    _, operator = await first.make("boss", Role.OPERATOR, {})
    key, secret = await first.make("app", Role.USER, {"budget": 0.1, "concurrent": 3})
    await first.settle("device-phone", {"exchange_rate": 1e-6})
    bill = Bill(1, Used(5, 6, 0, 0), 0.5, 0.25)
    first.charge(BillBatch("api", 1, [Charge(key.id, "phone", bill)]))
    await first.close()

    second = await opened(path)
    assert _names(second) == ["boss", "app"]
    caller = second.caller(digest(secret))
    assert caller is not None
    assert (caller.account, caller.role, caller.keyed, caller.name) == (key.id, Role.USER, True, "app")
    assert caller.at("phone") == caller, "a key pays for itself"
    assert (caller.terms.budget, caller.terms.concurrent) == (0.1, 3)
    assert second.statement("device-phone").terms.exchange_rate == 1e-6
    second.charge(BillBatch("api", 1, [Charge(key.id, "phone", bill)]))  # again, as nobody had confirmed it
    await second.written()
    statement = second.statement(key.id)
    assert statement.devices == {"phone": bill}
    assert statement.total == bill
    assert second._accounts.of(key.id).terms.budget == 0.1
    assert second.caller(None) is None
    assert second.caller(digest("invented")) is None
    assert second.caller(digest(operator)) is not None
    await second.close()


async def test_a_bill_is_written_though_nobody_closes(path: Path) -> None:
    treasury = await opened(path)
    treasury.charge(BillBatch("api", 1, [Charge(ANONYMOUS, "", Bill(requests=1))]))
    await treasury.written()
    beside = Ledger(path)
    assert [bill.requests for _, _, bill, *_ in beside.bills()] == [1]
    beside.close()
    await treasury.close()


async def test_what_is_being_written_when_it_closes_is_written_once(path: Path) -> None:
    treasury = await opened(path)
    write, begun, go = treasury._ledger.charge, threading.Event(), threading.Event()

    def slow(batches: Iterable[BillBatch]) -> int:
        begun.set()
        assert go.wait(10)
        return write(batches)

    treasury._ledger.charge = slow  # type: ignore[method-assign]
    treasury.charge(BillBatch("api", 1, [Charge(ANONYMOUS, "", Bill(requests=1))]))
    await asyncio.to_thread(begun.wait, 10)
    treasury.charge(BillBatch("api", 2, [Charge(ANONYMOUS, "", Bill(requests=10))]))
    closing = asyncio.create_task(treasury.close())
    await asyncio.sleep(0)
    go.set()
    await closing
    beside = Ledger(path)
    assert [bill.requests for _, _, bill, *_ in beside.bills()] == [11]
    beside.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (one treasury is not told of the other)
            await asyncio.sleep(0.01)


async def test_a_router_and_its_successor_know_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one replaces the other, both are there; the successor alone writes, and either may be asked."""
    monkeypatch.setattr("tandem.deployments.access.key_service.WATCH_S", 0.01)
    old = await opened(path)
    _, operator = await old.make("boss", Role.OPERATOR, {})
    key, secret = await old.make("app", Role.USER, {"budget": 0.1})
    old.charge(BillBatch("api", 1, [Charge(key.id, "", Bill(requests=1))]))
    await old.written()
    new = await opened(path)
    for number, requests in ((1, 1), (2, 10), (3, 100), (3, 100)):
        new.charge(BillBatch("api", number, [Charge(key.id, "", Bill(requests=requests))]))
        await new.written()
    await new.settle("device-phone", {"budget": 0.25})
    await until(lambda: new.caller(digest(secret)) is not None)
    for treasury in (old, new):
        await until(lambda treasury=treasury: treasury.statement(key.id).total.requests == 111)
    await until(lambda: old.statement("device-phone").terms.budget == 0.25)
    await new.revoke(key.id)
    await until(lambda: old.caller(digest(secret)) is None)
    assert old.statement(key.id).total.requests == 0, "nor has it an account"
    assert old.caller(digest(operator)) is not None
    await old.close()
    assert [bill.requests for account, _, bill, *_ in new._ledger.bills() if account == key.id] == [111]
    await new.close()


async def test_an_invented_account_is_not_opened(path: Path) -> None:
    treasury = await opened(path)
    with pytest.raises(NoSuchKey, match="nobody"):
        await treasury.settle("nobody", {"budget": 0.1})
    assert not treasury._accounts._accounts
    await treasury.close()


async def test_what_cannot_be_written_is_not_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    treasury = await opened(path)
    await treasury.make("boss", Role.OPERATOR, {})

    def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(treasury._ledger, "keep_key", full)
    with pytest.raises(LedgerError):
        await treasury.make("app", Role.USER, {})
    assert _names(treasury) == ["boss"]
    await treasury.close()


async def test_a_full_disk_does_not_keep_the_ledger_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = await opened(path)
    ledger = service._ledger

    def full(*_: object) -> int:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(ledger, "charge", full)
    service.charge(BillBatch("api", 1, [Charge("key-1", "", Bill(1))]))
    with pytest.raises(LedgerError, match="full"):
        await service.close()
    with pytest.raises(LedgerError, match="closed database"):
        ledger.changed_elsewhere()


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch) -> GuardNote:
    """One in a cluster of its own."""
    kept: dict[bytes, bytes] = {}
    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_get", kept.get)
    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_put", kept.__setitem__)
    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_del", kept.pop)
    monkeypatch.setattr("tandem.deployments.access.key_service.WATCH_S", 0.01)
    return GuardNote("an application")


@pytest.mark.parametrize("name", ["other.sqlite", None])
async def test_what_keys_have_guarded_opens_only_when_told(
    path: Path, note: GuardNote, name: str | None
) -> None:
    first, other = await opened(path, note), name and path.with_name(name)
    await first.make("phone", Role.DEVICE, {})
    await first.make("boss", Role.OPERATOR, {})
    await until(lambda: note.read() == str(path))
    await first.close()
    with pytest.raises(LedgerError, match=rf"keys in {path} have guarded the API, and there are none in"):
        await opened(other, note)
    again = await opened(path, note)
    assert again.caller(None) is None
    told = await opened(other, note, may_be_open=True)
    assert told.caller(None) is not None
    for treasury in (again, told, await opened(other, note)):
        await treasury.close()


async def test_an_api_whose_last_key_is_revoked_may_be_open(path: Path, note: GuardNote) -> None:
    treasury = await opened(path, note)
    boss, _ = await treasury.make("boss", Role.OPERATOR, {})
    await until(lambda: note.read() is not None)
    await treasury.revoke(boss.id)
    await until(lambda: note.read() is None)
    await treasury.close()
    await (await opened(None, note)).close()


async def test_keys_need_a_file() -> None:
    treasury = await opened(None)
    with pytest.raises(KeyRefused, match=r"ledger\.path"):
        await treasury.make("boss", Role.OPERATOR, {})
    await treasury.close()


async def test_a_revoked_key_has_no_account(path: Path) -> None:
    treasury = await opened(path)
    await treasury.make("boss", Role.OPERATOR, {})
    key, secret = await treasury.make("app", Role.USER, {})
    await treasury.revoke(key.id)
    assert treasury.caller(digest(secret)) is None
    assert key.id not in treasury._accounts._accounts
    await treasury.close()


async def test_a_keys_terms_change_with_its_account(path: Path) -> None:
    treasury = await opened(path)
    await treasury.make("boss", Role.OPERATOR, {})
    key, _ = await treasury.make("app", Role.USER, {"concurrent": 2})
    statement = await treasury.settle(key.id, {"budget": 0.125, "concurrent": 0})
    assert statement.terms == treasury.statement(key.id).terms
    assert (statement.terms.budget, statement.terms.concurrent) == (0.125, None)
    await treasury.close()


async def test_without_keys_a_devices_terms_are_its_accounts(path: Path) -> None:
    treasury = await opened(path)
    await treasury.settle("device-phone", {"budget": 0.125})
    await treasury.settle(ANONYMOUS, {"exchange_rate": 1.0})
    await treasury.close()
    again = await opened(path)
    anybody = again.caller(None)
    assert anybody is not None
    assert anybody.at("phone").terms == again.statement("device-phone").terms
    assert (anybody.at("phone").terms.budget, anybody.at("laptop").terms.budget) == (0.125, 0.5)
    assert anybody.at(None).terms.exchange_rate == 1.0 != anybody.at("laptop").terms.exchange_rate
    await again.close()


async def test_bills_that_cannot_be_written_are_not_confirmed_and_not_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    treasury = await opened(path)
    batch = BillBatch("api", 1, [Charge(ANONYMOUS, "", Bill(requests=1))])

    def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(treasury._ledger, "charge", full)
        treasury.charge(batch)
        with pytest.raises(LedgerError):
            await treasury.written()
    treasury.charge(batch)
    await treasury.written()
    assert treasury.statement(ANONYMOUS).total.requests == 1
    assert [bill.requests for _, _, bill, *_ in treasury._ledger.bills()] == [1]
    await treasury.close()


def test_nothing_lifts_a_limit_but_no_price() -> None:
    terms = Terms(0.5, 1e-7, requests_per_minute=5, modes=("cloud",), expires_s=9.0)
    lifted = changed(terms, {"requests_per_minute": 0, "modes": (), "expires_s": 0, "budget": 0.0})
    assert lifted == Terms(0.0, 1e-7)


async def test_dollars_of_a_period_are_known_after_a_restart(tmp_path: Path) -> None:
    """Callers are told what the ledger has, whichever service booked it."""
    now_s = 1_795_600_000.0  # 2026-11-25
    path = LedgerSettings(path=tmp_path / "ledger.sqlite")
    first = KeyService(path, Accounts(), lambda: now_s)
    await first.open()
    await first.make("operator", Role.OPERATOR, {})
    key, secret = await first.make("app", Role.USER, {"usd": 5.0, "per": "week"})
    for number, (day, usd) in enumerate((("2026-11-22", 8.0), ("2026-11-24", 1.5), ("2026-11-25", 0.25)), 1):
        bill = Bill(1, server_usd_out=usd)
        first.charge(BillBatch("api", number, [Charge(key.id, "", bill, "cloud", "m", day)]))
        await first.written()
    known = first.caller(digest(secret))
    assert known is not None
    assert known.spent == Spent("2026-11-23", 1.75)
    assert first.standing(key.id) == Standing(known.spent, None)
    assert first.standing("nobody") == Standing()
    rows = await first.usage(UsageQuery(by=("day",)))
    assert [each.place for each in rows] == [("2026-11-22",), ("2026-11-24",), ("2026-11-25",)]
    await first.close()
    second = KeyService(path, Accounts(), lambda: now_s)
    await second.open()
    again = second.caller(digest(secret))
    assert again == known
    assert second.statement(key.id).usd == Spent("2026-11-23", 1.75)
    changed = await second.settle(key.id, {"usd": 0.0})
    assert changed.terms.usd is None
    lifted = second.caller(digest(secret))
    assert lifted is not None
    assert lifted.spent is None
    await second.close()


async def test_a_teams_keys_share_its_dollars(path: Path) -> None:
    now_s = 1_795_600_000.0  # 2026-11-25
    settings = LedgerSettings(path=path)
    first = KeyService(settings, Accounts(), lambda: now_s)
    await first.open()
    await first.make("operator", Role.OPERATOR, {})
    with pytest.raises(NoSuchTeam):
        await first.make("app", Role.USER, {}, "red")
    await first.make_team("red", {"usd": 5.0, "per": "day", "concurrent": 3})
    with pytest.raises(KeyRefused, match="already"):
        await first.make_team("red", {})
    with pytest.raises(KeyRefused, match="cannot name a team"):
        await first.make_team("../red", {})
    one, secret = await first.make("app", Role.USER, {"usd": 9.0}, "red")
    other, _ = await first.make("phone", Role.DEVICE, {}, "red")
    for number, key in enumerate((one, other), 1):
        bill = Bill(1, server_usd_out=float(number))
        first.charge(BillBatch("api", number, [Charge(key.id, "", bill, "cloud", "m", "2026-11-25")]))
    team = Team("red", Quota(usd=5.0, per="day", concurrent=3))
    known = first.caller(digest(secret))
    assert known is not None
    assert known.team == TeamLimits(team, Spent("2026-11-25", 3.0))
    assert known.spent == Spent("2026-11-01", 1.0)
    with pytest.raises(KeyRefused, match=f"{one.id}, {other.id}; revoke them"):
        await first.remove_team("red")
    await first.revoke(other.id)
    await first.close()

    second = KeyService(settings, Accounts(), lambda: now_s)
    await second.open()
    assert second.caller(digest(secret)) == known, "a revoked key's dollars stay spent"
    assert second.teams() == [TeamStatement(team, (one.id,), Spent("2026-11-25", 3.0))]
    changed = await second.change_team("red", {"usd": 0.0})
    assert changed.team.quota == replace(team.quota, usd=None)
    left = await second.change(one.id, None, None, {}, "")
    assert (left.team, left.terms.usd) == ("", 9.0)
    await second.remove_team("red")
    with pytest.raises(NoSuchTeam):
        await second.change(one.id, None, None, {}, "red")
    again = await second.make_team("red", {"usd": 5.0, "per": "day"})
    assert again.usd == Spent("2026-11-25", 3.0)
    await second.close()


async def test_two_services_never_lose_a_change_of_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redeploy: the successor writes, late writes of the old one are refused, and each knows what holds."""
    monkeypatch.setattr("tandem.deployments.access.key_service.WATCH_S", 0.01)
    old = await opened(path)
    boss, _ = await old.make("boss", Role.OPERATOR, {})
    key, secret = await old.make("app", Role.USER, {})
    new = await opened(path)
    batch = BillBatch("api", 1, [Charge(ANONYMOUS, "", Bill(requests=1))])
    await new.revoke(key.id)
    with pytest.raises(LeaseLost):
        await old.change(boss.id, "another name", None, {})
    with pytest.raises(LeaseLost):
        await old.make("late", Role.USER, {})
    old.charge(batch)
    with pytest.raises(LeaseLost):
        await old.written()
    new.charge(batch)  # it is sent again
    await new.written()
    await until(lambda: old.caller(digest(secret)) is None)
    await new.close()  # its deployment fails, and the old one goes on
    await until(lambda: old.statement(ANONYMOUS).total.requests == 1)

    for _ in range(500):  # until it has looked
        with suppress(LeaseLost):
            await old.make("in time", Role.USER, {})
            break
        await asyncio.sleep(0.01)
    old.charge(batch)
    await old.written()
    await old.close()
    last = await opened(path)
    assert [known.name for known in last.keys()] == ["boss", "in time"]  # noqa: SIM118
    assert last.statement(ANONYMOUS).total.requests == 1
    await last.close()
