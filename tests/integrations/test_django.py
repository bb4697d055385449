"""The example for Django under gunicorn, with a worker: real processes, a database on disk, requests over HTTP."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis

from fennelq.broker.keys import queue_keys
from tests.integrations.conftest import Serve, Web
from tests.kit.processes import executors
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Process, Spawner
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(180)

PRICES = {"tea": 300, "coffee": 450}
MORE_TASKS = '''

from django.db import connection


@app.task
def careless(order_id: int) -> bool:
    return Order.objects.filter(pk=order_id).exists()


@app.task
@with_database
def careful(order_id: int) -> bool:
    return Order.objects.filter(pk=order_id).exists()


@app.task
@with_database
def breaks_its_connection() -> None:
    break_the_connection()


@app.task
def breaks_its_connection_carelessly() -> None:
    break_the_connection()


def break_the_connection() -> None:
    """As a database server does that closes it."""
    connection.ensure_connection()
    connection.connection.close()
'''


class Shop:
    """A copy of the example, with a database of its own, and what one types in its folder."""

    def __init__(self, folder: Path, redis_url: str, spawn: Spawner) -> None:
        self.folder, self._spawn = folder, spawn
        self.environment = {"FENNELQ_REDIS_URL": redis_url, "FENNELQ_LOG_FORMAT": "json"}
        shutil.copytree(
            PROJECT / "examples/django", folder, ignore=shutil.ignore_patterns("db.sqlite3", ".*")
        )
        self.manage("migrate", "--verbosity=0")

    def manage(self, *words: str) -> str:
        """`python manage.py words…`; what it prints."""
        command = [sys.executable, "manage.py", *words]
        environment = {"PATH": "/usr/bin:/bin", **self.environment}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def python(self, code: str) -> str:
        """Run code with Django set up, as `manage.py shell` does; what it prints."""
        return self.manage("shell", "--no-imports", "-c", code).strip()

    def add_tasks(self) -> None:
        """Tasks that treat their database connections in different ways."""
        file = self.folder / "orders/tasks.py"
        file.write_text(file.read_text() + MORE_TASKS)

    def work(self, *flags: str) -> Process:
        """Start a worker, as the guide does."""
        words = ("worker", "-A", "shop.queue:app", "-p", "1", *flags)
        worker = self._spawn("fennelq", *words, environment=self.environment, directory=self.folder)
        worker.wait_for("worker_started", within=30)
        return worker

    def connections_of(self, worker: Process) -> int:
        """Open connections to the database in the executor."""
        [executor] = executors(worker)
        return sum(file.path.endswith("db.sqlite3") for file in psutil.Process(executor.pid).open_files())


@pytest.fixture
def shop(tmp_path: Path, redis_url: str, spawn: Spawner) -> Shop:
    return Shop(tmp_path / "project", redis_url, spawn)


@pytest.mark.parametrize(
    "flags",
    [("--threads", "4"), ("--threads", "4", "--preload"), (), ("--preload",)],
    ids=["threads", "threads, forked after the import", "prefork", "prefork, forked after the import"],
)
def test_under_gunicorn_every_order_is_confirmed_once_and_every_price_is_right(
    shop: Shop, serve: Serve, flags: tuple[str, ...]
) -> None:
    worker = shop.work()
    web = serve(
        "gunicorn", "shop.wsgi", "-w", "2", *flags, environment=shop.environment, directory=shop.folder
    )

    def order(number: int) -> int:
        reply = web.post_form("/orders", item="tea", email=f"{number}@example.org")
        assert reply.status == 201
        return int(reply.json["order"])

    def price(number: int) -> tuple[str, int]:
        item = ["tea", "coffee"][number % 2]
        return item, web.get(f"/prices/{item}").json["cents"]

    with ThreadPoolExecutor(8) as pool:
        orders, prices = pool.map(order, range(24)), pool.map(price, range(24))
        numbers = [*orders]
        assert [*prices] == [*PRICES.items()] * 12
    assert sorted(numbers) == [*range(1, 25)]
    eventually(lambda: all(is_confirmed(web, number) for number in numbers), within=30)
    # An order is confirmed before its job has ended: the worker finishes what is left.
    worker.term()
    assert worker.returncode() == 0
    mails = sorted(
        int(line.split()[1].partition("@")[0]) for line in worker.text.splitlines() if "To: " in line
    )
    assert mails == [*range(24)]


def is_confirmed(web: Web, number: int) -> bool:
    view = web.get(f"/orders/{number}").json
    assert (view["order"], view["item"]) == (number, "tea")
    confirmed: bool = view["confirmed"]
    return confirmed


@pytest.mark.audit(unfinished=True)
def test_only_a_commit_sends_the_job(shop: Shop, server: Server) -> None:
    shop.python(
        """
from contextlib import suppress
from django.db import transaction
from orders.models import Order
with suppress(LookupError), transaction.atomic():
    Order.objects.create(item="tea", email="rolled-back@example.org")
    raise LookupError
with transaction.atomic():
    with suppress(LookupError), transaction.atomic():
        Order.objects.create(item="tea", email="inner@example.org")
        raise LookupError
    order = Order.objects.create(item="tea", email="outer@example.org")
order.save()
"""
    )
    with server.client() as client:
        assert waiting(client) == 1


def waiting(client: redis.Redis) -> int:
    return int(client.xlen(queue_keys("shop", "mail")["s"]))


def test_an_idle_worker_holds_no_database_connection(shop: Shop) -> None:
    shop.add_tasks()
    worker = shop.work("-c", "4")
    answers = shop.python(
        """
from orders.tasks import careful, orders_of
handles = [*careful.sync.map(range(40)), *orders_of.sync.map(["ann@example.org"] * 8)]
print([handle.get(timeout=30) for handle in handles] == [False] * 40 + [0] * 8)
"""
    )
    assert answers == "True"
    assert shop.connections_of(worker) == 0
    # What this test would not notice otherwise: without the decorator a thread keeps its connection.
    shop.python("from orders.tasks import careless; careless.sync.delay(1).get(timeout=30)")
    assert shop.connections_of(worker) == 1


def test_a_job_gets_a_sound_connection_whatever_became_of_the_one_before(shop: Shop) -> None:
    shop.add_tasks()
    shop.work("-c", "1")
    answers = shop.python(
        """
from fennelq import TaskFailed
from orders.tasks import *
breaks_its_connection.sync.delay().get(timeout=30)
print(careful.sync.delay(1).get(timeout=30))
breaks_its_connection_carelessly.sync.delay().get(timeout=30)
try:
    careless.sync.options(retries=0).delay(1).get(timeout=30)
except TaskFailed as failure:
    print(failure.error_type)
print(careful.sync.delay(1).get(timeout=30))
"""
    )
    assert answers.splitlines() == ["False", "django.db.utils.ProgrammingError", "False"]


def test_a_browser_sees_the_progress_of_a_job_and_cancels_it(shop: Shop, serve: Serve) -> None:
    shop.work()
    web = serve("gunicorn", "shop.wsgi", environment=shop.environment, directory=shop.folder)
    small = web.post_form("/exports", pages="2").json["job"]
    eventually(lambda: web.get(f"/exports/{small}").json == {"status": "SUCCESS", "part": 1.0}, within=30)
    large = web.post_form("/exports", pages="9000").json["job"]
    eventually(lambda: web.get(f"/exports/{large}").json["part"], within=30)
    assert web.get(f"/exports/{large}").json["status"] == "EXECUTING"
    assert web.delete(f"/exports/{large}").json == {"cancelled": True}
    assert web.get(f"/exports/{large}").json["status"] == "CANCELLED"


def test_the_worker_has_every_task_and_a_command_finds_the_app(shop: Shop, spawn: Spawner) -> None:
    output = shop.python("from shop.queue import app; print(*sorted(app.tasks))")
    names = ("confirm", "confirm_the_rest", "export", "orders_of", "price_of")
    assert output.split() == [f"orders.tasks:{name}" for name in names]
    info = spawn(
        "fennelq", "info", "-A", "shop.queue:app", environment=shop.environment, directory=shop.folder
    )
    assert info.returncode(30) == 0
    assert [line.split() for line in info.text.splitlines() if line.startswith("tasks")] == [["tasks", "5"]]


@pytest.mark.audit(unfinished=True)
def test_the_suite_of_the_project_passes_and_sends_nothing_to_its_redis(shop: Shop, server: Server) -> None:
    printed = shop.manage("test")
    assert "Ran 3 tests" in printed
    assert printed.rstrip().splitlines()[-2:] == ["OK", "Destroying test database for alias 'default'..."]
    with server.client() as client:
        assert client.dbsize() == 0
