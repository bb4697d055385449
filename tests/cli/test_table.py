"""How a table gives way where there is no room."""

from __future__ import annotations

import pytest

from fennelq.cli.tables.table import Column, fit, padded, shortened, width, wrapped

COLUMNS = [
    Column("id"),
    Column("task", least=6, end=True, leave=1),
    Column("tries", leave=2),
    Column("message", least=8, leave=3),
]


@pytest.mark.parametrize(
    ("room", "shown", "widths"),
    [
        (90, [0, 1, 2, 3], [20, 12, 5, 30]),
        (60, [0, 1, 2, 3], [20, 12, 5, 17]),
        (50, [0, 1, 2, 3], [20, 9, 5, 10]),
        (45, [0, 1, 2, 3], [20, 6, 5, 8]),
        (44, [0, 1, 2], [20, 12, 5]),
        (40, [0, 1, 2], [20, 11, 5]),
        (34, [0, 1], [20, 12]),
        (28, [0, 1], [20, 6]),
        (27, [0], [20]),
        (10, [0], [20]),
    ],
)
def test_texts_are_shortened_then_columns_are_left_out_and_an_id_is_never_cut(
    room: int, shown: list[int], widths: list[int]
) -> None:
    assert fit(COLUMNS, [20, 12, 5, 30], room) == (shown, widths)


def test_what_is_left_out_is_known_but_not_what_is_empty() -> None:
    columns = [Column("id"), Column("due", leave=100), Column("task", leave=1)]
    assert fit(columns, [10, 3, 10], 12).left_out(columns) == ["task"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("abc", 3),
        ("日本語", 6),
        ("ﾊﾝｶｸ", 4),
        ("e\u0301", 1),
        ("🎉", 2),
        ("❤\ufe0f", 2),
        ("한국", 4),
        ("\u1112\u1161\u11ab", 2),
        ("שלום", 4),
        ("مرحبا", 5),
        ("…", 1),
    ],
)
def test_the_width_of_a_text_is_that_on_the_screen(text: str, columns: int) -> None:
    assert width(text) == columns
    assert len(padded(text, 10)) == len(text) + 10 - columns


@pytest.mark.parametrize(
    ("text", "room", "end", "shown"),
    [
        ("shop.tasks:charge", 17, False, "shop.tasks:charge"),
        ("shop.tasks:charge", 10, False, "shop.task…"),
        ("shop.tasks:charge", 10, True, "…ks:charge"),
        ("日本語のメッセージ", 10, False, "日本語の…"),
        ("日本語のメッセージ", 9, False, "日本語の…"),
        ("日本語のメッセージ", 8, True, "…ッセージ"[:1] + "セージ"),
        ("e\u0301e\u0301e\u0301", 2, False, "e\u0301…"),
        ("no money", 4, False, "no…"),
        ("🎉🎉🎉", 5, False, "🎉🎉…"),
    ],
)
def test_a_text_is_shortened_to_its_room(text: str, room: int, end: bool, shown: str) -> None:
    assert shortened(text, room, end=end) == shown
    assert width(shown) <= room


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no money", ["no money"]),
        ("the mail server is down", ["the mail", "server is", "down"]),
        ("a unbreakable-word b", ["a", "unbreakable-word", "b"]),
        ("so type `fennelq queue list` now", ["so type", "`fennelq queue list`", "now"]),
        ("it's a ` alone and long", ["it's a `", "alone and", "long"]),
        ("日本 のメッ", ["日本", "のメッ"]),
        ("", [""]),
    ],
)
def test_a_sentence_is_wrapped_at_spaces_and_not_within_a_command(text: str, shown: list[str]) -> None:
    assert wrapped(text, 10).split("\n") == shown


def test_a_huge_text_is_measured_no_further_than_needed() -> None:
    assert width("日" * 1_000_000, 80) == 82
