"""Many values, in memory or in a file."""

from __future__ import annotations

import tempfile

import pytest

from fennelq.errors import FennelqError
from fennelq.manage.dead import spool
from fennelq.manage.dead.spool import Spool


@pytest.mark.parametrize("in_memory", [0, 1 << 20])
def test_values_are_read_in_order_any_number_of_times(
    monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY", in_memory or 10)
    kept = Spool()
    for number in range(100):
        kept.add(number, "ä\n" * number)
    wanted = [[number, "ä\n" * number] for number in range(100)]
    assert kept.count == 100
    assert list(kept) == list(kept) == wanted
    one, other = iter(kept), iter(kept)
    assert [next(one), next(other), next(one), next(other)] == [wanted[0], wanted[0], wanted[1], wanted[1]]
    kept.add("more")
    assert list(kept)[100] == ["more"]


def test_what_cannot_be_written_changes_nothing() -> None:
    kept = Spool()
    with pytest.raises(TypeError):
        kept.add("\ud800")
    assert (kept.count, list(kept)) == (0, [])


def test_a_temporary_file_that_cannot_be_written_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY", 10)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    kept = Spool()
    with pytest.raises(FennelqError, match=r"^a temporary file cannot be written: .* Set TMPDIR to a folder"):
        kept.add("0123456789")
    assert kept.count == 0
    monkeypatch.setattr(tempfile, "tempdir", None)
    kept.add("9876543210")
    assert list(kept) == [["9876543210"]]
