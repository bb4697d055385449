"""Dead jobs by cause: 300 dead jobs are three problems."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fennelq import App, ConfigurationError, InvalidFilter
from fennelq.broker.keys import queue_keys
from fennelq.manage.dead import groups as module
from fennelq.manage.dead import search
from fennelq.manage.dead.letter import Group
from tests.features.conftest import MakeApp
from tests.features.test_dead_letters import Shop
from tests.kit.groups import count_as_other
from tests.kit.server import Server
from tests.kit.waiting import aeventually


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


async def charges(shop: Shop) -> Group:
    (group,) = [one for one in await shop.app.dlq.groups() if one.task == shop.charge.name]
    return group


async def test_a_group_has_its_cause_and_the_time_of_its_first_and_its_newest_job(shop: Shop) -> None:
    await shop.kill(charges=3, welcomes=1)
    group, other = await shop.app.dlq.groups()
    letters = await shop.app.dlq.list(order="oldest", queue="default")
    assert (group.task, group.jobs, group.reason) == (shop.charge.name, 3, "failed")
    assert group.error_type.endswith(".CardRefused")
    assert group.message == letters[0].message
    assert (group.first, group.newest) == (letters[0].died_at, letters[-1].died_at)
    assert {letter.fingerprint for letter in letters} == {group.fingerprint} != {other.fingerprint}
    letter = await shop.app.dlq.get(letters[0].id)
    assert letter is not None
    assert letter.fingerprint == group.fingerprint


async def test_groups_of_several_queues_are_added_up(shop: Shop) -> None:
    handles = await shop.app.enqueue([shop.charge.options(queue="mail").job(n) for n in range(3)])
    await shop.kill(charges=2)
    await aeventually(lambda: shop.all_dead(handles))
    (group,) = await shop.app.dlq.groups()
    (mail,) = await shop.app.dlq.groups(queue="mail")
    assert (group.jobs, mail.jobs, mail.fingerprint) == (5, 3, group.fingerprint)


async def test_a_fingerprint_selects_jobs_of_one_cause(shop: Shop) -> None:
    await shop.kill(charges=3, welcomes=2)
    fingerprint = (await charges(shop)).fingerprint
    assert len(await shop.app.dlq.list(fingerprint=fingerprint)) == 3
    assert await shop.app.dlq.count(fingerprint=fingerprint.upper()) == 3
    assert await shop.app.dlq.count(fingerprint=fingerprint, until=timedelta(days=1)) == 0
    assert await shop.app.dlq.count(fingerprint=fingerprint, queue="mail") == 0
    assert (await shop.app.dlq.replay(fingerprint=fingerprint, limit=1)).replayed == 1
    assert await shop.app.dlq.purge(fingerprint=fingerprint) == 2
    assert [letter.task for letter in await shop.app.dlq.list()] == [shop.welcome.name] * 2


async def test_with_other_filters_the_groups_are_those_of_the_jobs_that_match(shop: Shop) -> None:
    await shop.kill(charges=3, welcomes=2)
    letters = await shop.app.dlq.list()
    (group,) = await shop.app.dlq.groups(ids=[letter.id for letter in letters if letter.queue == "mail"][:1])
    assert (group.task, group.jobs) == (shop.welcome.name, 1)
    assert await shop.app.dlq.groups(until=timedelta(days=1)) == []


@pytest.mark.parametrize("text", ["", "beef", "0000beefx", "0000 eef", "@"])
async def test_what_is_no_fingerprint_is_refused(app: App, text: str) -> None:
    with pytest.raises(ConfigurationError, match="8 hexadecimal digits"):
        await app.dlq.count(fingerprint=text)


async def test_an_unknown_fingerprint_selects_nothing(shop: Shop) -> None:
    await shop.kill(charges=1)
    assert await shop.app.dlq.list(fingerprint="0000beef") == []
    assert await shop.app.dlq.purge(fingerprint="0000beef") == 0


async def test_jobs_whose_entries_an_earlier_release_has_written_are_counted_and_found(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The janitor has not come yet."""
    monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(search, "PAGE", 2)
    await shop.kill(charges=3, welcomes=1)
    keys = queue_keys(shop.app.namespace, "default")
    with server.client() as redis:
        client: Any = redis
        client.delete(keys["dlq:g"], keys["dlq:f"], keys["dlq:l"])
        old = [fields for _, fields in client.xrange(keys["dlq"])]
        client.delete(keys["dlq"])
        for fields in old:
            del fields[b"f"]
            entry = client.xadd(keys["dlq"], fields)
            client.hset(keys.record(fields[b"i"].decode()), "p", f"dlq/{entry.decode()}")
    assert sum(one.jobs for one in await shop.app.dlq.groups()) == 4
    group = await charges(shop)
    assert (group.jobs, group.error_type.rpartition(".")[2]) == (3, "CardRefused")
    assert await shop.app.dlq.count(fingerprint=group.fingerprint) == 3
    assert (await shop.app.dlq.replay(fingerprint=group.fingerprint)).replayed == 3


@pytest.mark.audit(index_is_wrong=True)
@pytest.mark.parametrize("lost", ["dlq:g", "dlq:f", "dlq:l"])
async def test_groups_are_right_while_the_index_is_damaged(shop: Shop, server: Server, lost: str) -> None:
    await shop.kill(charges=3, welcomes=1)
    before = await shop.app.dlq.groups()
    with server.client() as client:
        client.delete(queue_keys(shop.app.namespace, "default")[lost])
    assert await shop.app.dlq.groups() == before
    assert await shop.app.dlq.count(fingerprint=before[0].fingerprint) == 3


@pytest.mark.audit(index_is_wrong=True)
async def test_groups_are_right_after_an_earlier_release_has_removed_jobs(shop: Shop, server: Server) -> None:
    await shop.kill(charges=3)
    keys = queue_keys(shop.app.namespace, "default")
    with server.client() as redis:
        client: Any = redis
        entry, fields = client.xrange(keys["dlq"])[0]
        client.xdel(keys["dlq"], entry)
        job = fields[b"i"].decode()
        client.delete(keys.record(job), keys.result(job))
    assert (await charges(shop)).jobs == 2


async def test_the_jobs_that_have_no_group_of_their_own_can_be_selected(
    make_app: MakeApp, server: Server
) -> None:
    shop = Shop(make_app())
    await shop.kill(charges=2, welcomes=1)
    count_as_other(server, shop.app.namespace, "default")
    (others,) = await shop.app.dlq.groups(queue="default")
    assert (others.fingerprint, others.task, others.message, others.jobs) == ("other", "", "", 2)
    assert await shop.app.dlq.count(fingerprint="other") == 2
    fingerprint = (await shop.app.dlq.list(queue="default"))[0].fingerprint
    assert await shop.app.dlq.count(fingerprint=fingerprint) == 2
    assert [one.task async for one in shop.app.dlq.scan(fingerprint="other")] == [shop.charge.name] * 2
    assert len([one async for one in shop.app.dlq.export(fingerprint="other")]) == 2
    assert await shop.app.dlq.purge(task=shop.charge, queue="default") == 2
    assert [one.task for one in await shop.app.dlq.groups()] == [shop.welcome.name]


async def test_the_jobs_that_have_no_group_of_their_own_are_not_moved_together(
    make_app: MakeApp, server: Server
) -> None:
    shop = Shop(make_app())
    await shop.kill(charges=2)
    count_as_other(server, shop.app.namespace, "default")
    dlq, refused = shop.app.dlq, "'other' stands for jobs of many causes.*their task, their error"
    for moving in (dlq.plan, dlq.replay, dlq.purge):
        with pytest.raises(InvalidFilter, match=refused):
            await moving(fingerprint="other")
        with pytest.raises(InvalidFilter, match=refused):
            await moving(fingerprint="other", task=shop.charge, limit=1)
    assert await dlq.count(fingerprint="other") == 2


async def test_the_groups_cost_the_same_however_many_jobs_are_dead(shop: Shop, server: Server) -> None:
    async def cost() -> int:
        with server.client() as client:
            client.config_resetstat()
            await shop.app.dlq.groups()
            stats = client.info("commandstats")
            return sum(
                facts["calls"] for name, facts in stats.items() if "config" not in name and "info" not in name
            )

    await shop.kill(charges=1)
    await shop.app.dlq.groups()
    one = await cost()
    await shop.kill(charges=60)
    assert await cost() == one
