"""The loader: names for fields and keys, files that include others, keys declared by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fennelq.broker import lua_files, scripts, verbs
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.scripts import Script
from fennelq.broker.verb import Verb

Load = Callable[..., Script]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """`load(arrow=text, …)` loads the script `arrow` of these files, where `_` in a name is a folder."""

    def loaded(**texts: str) -> Script:
        found = {f"{name.replace('_', '/')}.lua": text for name, text in texts.items()}
        monkeypatch.setattr(lua_files, "text_of", found.__getitem__)
        forget_files()
        return scripts.script("arrow")

    yield loaded
    monkeypatch.undo()
    forget_files()


def forget_files() -> None:
    scripts.script.cache_clear()
    lua_files.lua_file.cache_clear()


def code_of(script: Script) -> list[str]:
    """Its lines after the first."""
    return [line for line in script.source.splitlines() if not line.startswith("#!")]


def test_a_field_is_its_letter(load: Load) -> None:
    script = load(arrow="redis.call('HSET', record, F.place, here, F.settled_by, f[F.place])\n")
    assert code_of(script) == ["redis.call('HSET', record, 'p', here, 'T', f['p'])"]


def test_a_field_that_is_not_declared_is_an_error_with_the_nearest_one(load: Load) -> None:
    with pytest.raises(LookupError, match=r"arrow.lua uses F.plase, .* did you mean F.place\?"):
        load(arrow="return F.plase\n")


def test_a_key_that_is_not_declared_is_an_error_with_the_nearest_one(load: Load) -> None:
    with pytest.raises(LookupError, match=r"arrow.lua uses K.deaf, .* did you mean K.dead\?"):
        load(arrow="return {K.deaf, K[lane]}\n")


def test_a_script_that_knows_the_prefix_declares_one_key_for_the_slot(load: Load) -> None:
    script = load(arrow="--@args prefix\nreturn {K.scheduled, prefix .. N.dead}\n")
    assert script.keys == ("stats",)
    assert script.source.endswith("return {(prefix .. 'sched'), prefix .. 'dlq'}\n")


def test_the_name_of_an_unknown_key_is_an_error_with_the_nearest_one(load: Load) -> None:
    with pytest.raises(LookupError, match=r"arrow.lua uses N.deaf, .* did you mean N.dead\?"):
        load(arrow="--@args prefix\nreturn prefix .. N.deaf\n")


def test_keys_of_a_queue_and_of_an_app_do_not_mix(load: Load) -> None:
    with pytest.raises(LookupError, match=r"arrow.lua uses K\.\w+, which is not declared"):
        load(arrow="return {K.dead, K.sources}\n")


def test_what_a_script_and_its_includes_name_is_declared(load: Load) -> None:
    script = load(
        arrow="--@include first\nreturn K.dead\n",
        lib_first="--@include second\nlocal a = K.scheduled\n",
        lib_second="local b = K.counters\n",
    )
    assert script.of(queue_keys("shop", "mail")) == [
        f"fq:{{shop/mail}}:{name}" for name in ("stats", "sched", "dlq")
    ]
    assert code_of(script) == ["local b = KEYS[1]", "local a = KEYS[2]", "return KEYS[3]"]


def test_a_lane_is_a_key_of_the_queue(load: Load) -> None:
    script = load(arrow="--@args prefix\nreturn redis.call('XLEN', K[lane])\n")
    assert script.keys == ("stats",)
    assert code_of(script) == ["local prefix = ARGV[1]", "return redis.call('XLEN', (prefix .. lane))"]


def test_keys_of_an_app_are_called_what_they_are_called_in_redis(load: Load) -> None:
    for header in ("", "--@args prefix\n"):
        script = load(arrow=f"{header}return {{K.outbox, K.sources}}\n")
        assert script.of(AppKeys("shop")) == ["fq:{shop}:cron:sources", "fq:{shop}:out"]


def test_a_script_that_names_no_key_is_still_routed_to_its_queue(load: Load) -> None:
    assert load(arrow="return 1\n").keys == ("stats",)


def test_what_two_files_include_is_pasted_once_and_first(load: Load) -> None:
    script = load(
        arrow="--@include left, right\nreturn 1\n",
        lib_left="--@include below\nlocal left\n",
        lib_right="--@include below, lib/left\nlocal right\n",
        lib_below="local below\n",
    )
    assert code_of(script) == ["local below", "local left", "local right", "return 1"]


def test_lanes_are_named_in_one_place_and_words_of_commands_are_left_alone(load: Load) -> None:
    script = load(arrow="redis.call('XGROUP', 'GROUP', GROUP, NORMAL)\nreturn {LANES, PRIORITIES}\n")
    assert code_of(script) == [
        "redis.call('XGROUP', 'GROUP', 'fq', 's')",
        "return {{'s:high', 's', 's:low', 'iso'}, {'s:high', 's', 's:low'}}",
    ]


def test_comments_and_blank_lines_are_left_out(load: Load) -> None:
    script = load(
        arrow="-- arrow: does it.\n\n--@args prefix\n\n  -- F.nothing is named in a comment.\nreturn 1\n"
    )
    assert code_of(script) == ["local prefix = ARGV[1]", "return 1"]


def test_a_script_that_only_reads_is_known_as_such(load: Load) -> None:
    writing, reading = load(arrow="return 1\n"), load(arrow="--@flags no-writes\nreturn 1\n")
    assert (writing.read_only, reading.read_only) == (False, True)
    assert reading.source.startswith("#!lua flags=no-writes\n")


def test_a_call_that_only_reads_needs_no_right_to_write() -> None:
    keys = queue_keys("shop", "mail")
    calls: list[Verb[Any]] = [verbs.queues.promote(keys, 1), verbs.survey.survey(keys)]
    assert [call.by_sha()[0] for call in calls] == ["EVALSHA", "EVALSHA_RO"]
    assert [call.by_source()[0] for call in calls] == ["EVAL", "EVAL_RO"]


# Waking executors

RING = "local function wake_sleepers() end\nlocal function ring() end\n"
ADDING = {
    "lib_entries": "--@include ring\nlocal function add_entry() end\n",
    "lib_later": "--@include ring\nlocal function later() end\n",
    "lib_ring": RING,
}
every_adding_file = pytest.mark.parametrize("file", ["entries", "later"])


@every_adding_file
@pytest.mark.parametrize(
    "code", ["return 1", "ring(ARGV[1])", "-- It ends with wake_sleepers().", "tell_one('out')"]
)
def test_a_script_that_may_add_entries_or_due_times_and_wakes_no_executor_is_an_error(
    load: Load, file: str, code: str
) -> None:
    """The call of `ring` is for one lane, and tells nothing of due times."""
    with pytest.raises(LookupError, match=r"arrow\.lua may add entries .* does not end with wake_sleepers"):
        load(arrow=f"--@include {file}\n{code}\n", **ADDING)


def test_so_is_a_script_whose_leaving_may_add_entries(load: Load) -> None:
    with pytest.raises(LookupError, match=r"arrow\.lua may add entries"):
        load(
            arrow="--@include over\nover('again')\n",
            lib_over="--@leavings slots\nlocal function over(how)\n  --@leave again\nend\n",
            leaving_slots="--@include entries\n--@when again\nadd_entry()\n",
            **ADDING,
        )


@every_adding_file
def test_so_is_a_script_that_only_pastes_the_file_with_the_function(load: Load, file: str) -> None:
    with pytest.raises(LookupError, match=r"arrow\.lua may add entries"):
        load(arrow=f"local function made()\n  --@paste {file}\nend\n", **ADDING)


@every_adding_file
def test_a_script_that_wakes_executors_is_loaded(load: Load, file: str) -> None:
    script = load(arrow=f"--@include {file}\nwake_sleepers()\nreturn 1\n", **ADDING)
    assert code_of(script)[-2:] == ["wake_sleepers()", "return 1"]


def test_a_script_that_adds_nothing_may_only_ring(load: Load) -> None:
    script = load(arrow="--@include ring\nring(ARGV[1])\nreturn 1\n", **ADDING)
    assert code_of(script)[-2:] == ["ring(ARGV[1])", "return 1"]


# Gates and leavings


def test_checks_of_gates_are_pasted_in_their_order_and_what_they_need_into_a_function(load: Load) -> None:
    script = load(
        arrow="--@gates first, second\nlocal function gates()\n  --@paste gates\nend\n"
        "local function admit()\n  --@pass gates\n  start()\nend\n",
        gates_first="local function odd() end\n--@check\nif gates().odd() then\n  return\nend\n",
        gates_second="--@include below\n--@check\nlocal x = f[F.place]\nif x then return end\n",
        lib_below="local below\n",
    )
    assert code_of(script) == [
        "local function gates()",
        "local function odd() end",
        "local below",
        "end",
        "local function admit()",
        "if gates().odd() then",
        "  return",
        "end",
        "do",
        "local x = f['p']",
        "if x then return end",
        "end",
        "  start()",
        "end",
    ]


def test_what_a_script_includes_is_not_pasted_into_its_functions_again(load: Load) -> None:
    script = load(
        arrow="--@include below\n--@gates first\nlocal function gates()\n  --@paste gates\nend\n",
        gates_first="--@include below\nlocal odd\n",
        lib_below="local below\n",
    )
    assert code_of(script) == ["local below", "local function gates()", "local odd", "end"]


OVER = "--@leavings slots, tenants\nlocal function over(how)\n  --@read later, again\n  --@leave later, again\nend\n"


def test_a_leaving_is_called_in_the_cases_that_it_names(load: Load) -> None:
    script = load(
        arrow="--@include over\nover('again')\n",
        lib_over=OVER,
        leaving_slots="--@when ended, later: nonce\ngive_back(nonce)\n",
        leaving_tenants="--@include below\n--@when ended\nnever()\n",
        lib_below="local below\n",
    )
    assert code_of(script) == [
        "local function slots_ended(how, record, job, what, more, keep, nonce)",
        "give_back(nonce)",
        "end",
        "local function over(how)",
        "  local nonce = unpack(redis.call('HMGET', record, 'u'))",
        "  if nonce and how == 'later' and not pcall(slots_ended, how, record, job, what, more, keep, nonce)"
        " then count('leaving_failed') end",
        "end",
        "over('again')",
    ]


def test_where_a_leaving_acts_on_every_job_none_is_passed_over(load: Load) -> None:
    script = {
        "arrow": "--@include over\nreturn ONLY_MARKED\n",
        "lib_over": OVER,
        "leaving_slots": "--@when later\nx()\n",
    }
    assert code_of(load(**script, leaving_tenants="--@when again\nx()\n"))[-1] == "return true"
    tenants = "--@every job\n--@when again\nx()\n"
    assert code_of(load(**script, leaving_tenants=tenants))[-1] == "return false"


def test_a_case_that_is_not_known_is_an_error(load: Load) -> None:
    with pytest.raises(
        LookupError, match=r"leaving/slots\.lua acts when a run is over 'soon': known are ended"
    ):
        load(arrow="--@include over\n", lib_over=OVER, leaving_slots="--@when soon\nx()\n")
