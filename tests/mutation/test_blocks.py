"""The blocks of a Lua file, which say what a test runs of it."""

from __future__ import annotations

import pytest

from tests.kit.server import Server
from tests.mutation.blocks import OUTSIDE, block_at, blocks_of, logged, logging

LUA = """
local text = 'then end do' -- if this then that
local function doubled(number)
  if number > 10 then return 20
  elseif number > 5 then
    return 10
  else
    for _, each in ipairs({1, 2}) do text = text .. each end
  end
  repeat number = number + 1 until number > 3
  return number
end
return doubled(tonumber(ARGV[1]))
"""


def inner(word: str) -> str:
    """The text of the innermost block around a word."""
    number = block_at(LUA, LUA.index(word))
    return "" if number == OUTSIDE else LUA[slice(*blocks_of(LUA)[number])].strip()


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("return 20", "return 20"),
        ("return 10", "return 10"),
        ("text = text", "text = text .. each"),
        ("number = number", "number = number + 1"),
        ("local text", ""),
        ("return doubled", ""),
    ],
)
def test_the_innermost_block_around_a_place_is_found(word: str, text: str) -> None:
    assert inner(word) == text


def test_a_condition_belongs_to_the_block_in_which_it_is_decided() -> None:
    assert inner("number > 10").startswith("if number > 10")
    assert inner("number > 5").startswith("if number > 10")


@pytest.mark.parametrize(("argument", "number", "words"), [(11, 20, {"return 20"}), (6, 10, {"return 10"})])
def test_a_script_logs_the_blocks_that_it_runs(
    server: Server, argument: int, number: int, words: set[str]
) -> None:
    before = len(server.log_from(0))
    with server.client() as client:
        assert client.eval(logging(LUA, "lib/doubled.lua"), 0, argument) == number
    found = logged(server.log_from(before).decode())
    assert {file for file, _ in found} == {"lib/doubled.lua"}
    texts = {LUA[slice(*blocks_of(LUA)[int(block)])].strip() for _, block in found}
    assert words < texts
    assert len(texts) == 2
