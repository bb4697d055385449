"""Mutants that no test can notice, and why: (file, function, what was done) → reason.

What is changed has to be thought about anew: then its entries here fit no mutant any more. Moved lines are no change.
"""

from __future__ import annotations

from typing import Final

Key = tuple[str, str, str]

BY_REASON: Final[dict[str, list[Key]]] = {
    "an error of redis.pcall is a table without elements: what follows comes to the same": [
        ("beat.lua", "check_lane", "if page.err → false"),
        ("beat.lua", "look_at_stopping", "if jobs.err → false"),
        ("beat.lua", "look_at_stopping", "without known.err"),
        ("enqueue.lua", "meet", "without known.err"),
        ("fetch.lua", "pass_on", "without not left.err"),
        ("gc.lua", "drop_consumers", "if consumers.err → false"),
        ("lib/fields.lua", "load", "without flat.err"),
        ("lib/forget.lua", "forget", "without known.err"),
        ("lib/next_due.lua", "next_due", "without not head.err"),
        ("watch.lua", "watch", "without known.err"),
    ],
    "only the cost is different": [
        ("fetch.lua", "start", "if f[F.run] or f[F.options] or deliverie… → true"),
        ("fetch.lua", "start", "without f[F.run]"),
        ("fetch.lua", "take", "removed: last[lane] = entries[#entries][1]"),
    ],
    "then every run is judged by its record, which has the same result, one by one": [
        ("finish.lua", "", "removed: entries[lane] = {entry}"),
        ("finish.lua", "", "removed: all_ours[lane] = redis.pcall('XACK', …"),
        ("finish.lua", "", "without all_ours[lane_of[i]] and settle_run"),
    ],
    "false and nil are the same here": [
        ("enqueue.lua", "holder_of", "without nil"),
    ],
    "the same HSET writes the field once more, with its sign, and the later value counts": [
        ("enqueue.lua", "read_carried", "without letter ~= F.idempotency"),
    ],
    "an entry that no arrow wrote is named by no record, so it is dropped for that": [
        ("recover.lua", "recover", "without record"),
        ("recover.lua", "recover", "without job"),
        ("release.lua", "put_back", "without record"),
        ("release.lua", "put_back", "without fields[2]"),
    ],
    "every entry has a field": [
        ("lib/forget.lua", "forget", "if not job → false"),
        ("purge.lua", "purge_lane", "without job"),
    ],
    "what is not found is not deleted either": [
        ("lib/forget.lua", "forget", "without not found"),
    ],
    "it is deleted a few lines below": [
        ("lib/settle.lua", "bury", "DEL without result_of(job)"),
    ],
    "the record has it already, wherever a job is cancelled": [
        ("outcome/cancelled.lua", "settle.K", "HSET without F.place, place"),
    ],
    "PEXPIRE 0 deletes what was written": [
        ("lib/result.lua", "write_result", "if ttl ~= '0' and envelope ~= '' → true"),
        ("lib/result.lua", "write_result", "without ttl ~= '0'"),
    ],
    "an outcome without a value has no lifetime": [
        ("lib/result.lua", "write_result", "without envelope ~= ''"),
    ],
    "a string has no err": [
        ("lib/settle.lua", "bury", "without type(problem) == 'table'"),
    ],
    "servers older than 7.0 name deleted entries, and are refused": [
        ("recover.lua", "walk", "if entry[2] → true"),
    ],
    "a failure without tries has none": [
        ("recover.lua", "give_up", "without 0"),
    ],
    "where it differs from the lane, the lane is quarantine, and so is where the job goes": [
        ("recover.lua", "requeue", "without f[F.lane]"),
    ],
    "servers older than 7.0 leave it out, and are refused": [
        ("recover.lua", "walk", "without {}"),
    ],
    "a dead record always has its reason": [
        ("watch.lua", "watch", "without known[4]"),
    ],
    "every server tested raises errors as texts; others may raise tables": [
        ("lib/settle.lua", "bury", "without problem.err"),
        ("lib/settle.lua", "bury", "without type(problem) == 'table' and problem.err"),
    ],
}

EQUIVALENT: Final[dict[Key, str]] = {key: reason for reason, keys in BY_REASON.items() for key in keys}
