"""`fennelq exporter`, in a process of its own."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.kit.metrics import page_of, scraped, total
from tests.kit.ports import HOST, Port
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import eventually

APP = """
from fennelq import App

app = App("shop")


@app.task(queue="mail")
async def welcome(name: str) -> str:
    return name
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(APP)
    return tmp_path


def exporter(spawn: Spawner, folder: Path, url: str, port: int) -> Process:
    return spawn(
        *("fennelq", "exporter", "-A", "tasks:app", "--app-dir", str(folder), "--port", f"{HOST}:{port}"),
        environment={"FENNELQ_REDIS_URL": url},
    )


def status_of(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("ctrl_c", [False, True])
def test_it_serves_the_page_until_a_signal(
    spawn: Spawner, folder: Path, server: Server, ctrl_c: bool
) -> None:
    """And it begins before Redis is there."""
    port = Port()
    server.kill()
    process = exporter(spawn, folder, server.url, port.number)
    samples = eventually(lambda: scraped(port.number), tolerate=(OSError,))
    assert samples["fennelq_up"] == 0
    assert status_of(port.number, "/live") == 200
    assert status_of(port.number, "/ready") == 503
    server.start()
    eventually(lambda: scraped(port.number)["fennelq_up"] == 1)
    assert status_of(port.number, "/ready") == 200
    page = page_of(port.number)
    assert 'fennelq_queue_jobs{queue="mail",state="waiting"} 0' in page
    assert total(scraped(port.number), "fennelq_build_info") == 1
    process.interrupt() if ctrl_c else process.term()
    assert process.returncode() == 0
    assert f"serving metrics of shop (redis://{HOST}:{server.port}/0) on port {port.number}" in process.text
    port.release()


def test_it_is_ready_without_a_scrape_as_long_as_redis_is_there(
    spawn: Spawner, folder: Path, server: Server
) -> None:
    """A Service sends scrapes only to a pod that is ready."""
    port = Port()
    exporter(spawn, folder, server.url, port.number)
    eventually(lambda: status_of(port.number, "/ready") == 200, tolerate=(OSError,))
    server.kill()
    eventually(lambda: status_of(port.number, "/ready") == 503)
    server.start()
    eventually(lambda: status_of(port.number, "/ready") == 200)
    port.release()


def test_a_port_that_is_taken_is_an_error_with_its_name(spawn: Spawner, folder: Path, server: Server) -> None:
    port = Port()
    with port.listen():
        process = exporter(spawn, folder, server.url, port.number)
        assert process.returncode(20) == 78
    assert f"--port {port.number} cannot be opened" in process.text
    assert "Traceback" not in process.text
    port.release()
