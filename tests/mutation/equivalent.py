"""Mutants that no test can notice, and why: (file, function, what was done) → reason.

What is changed has to be thought about anew: then its entries here fit no mutant any more. Moved lines are no change.
"""

from __future__ import annotations

from typing import Final

Key = tuple[str, str, str]

BY_REASON: Final[dict[str, list[Key]]] = {
    "it only saves time: without it, the same numbers are found again, or collected and not used": [
        ("ends_take.lua", "read_entry", "if left == 0 → false"),
        ("lib/counts.lua", "write_counts", "without ended"),
    ],
    "an error of redis.pcall is a table without elements: what follows comes to the same": [
        ("beat.lua", "check_lane", "if page.err → false"),
        ("beat.lua", "look_at_stopping", "if jobs.err → false"),
        ("beat.lua", "look_at_stopping", "without known.err"),
        ("lib/carried.lua", "meet", "without known.err"),
        ("fetch.lua", "pass_on", "without not left.err"),
        ("gc.lua", "drop_consumers", "if consumers.err → false"),
        ("lib/fields.lua", "load", "without flat.err"),
        ("lib/forget.lua", "forget", "without known.err"),
        ("early/none_expired.lua", "watch", "without known.err"),
    ],
    "a gate of another kind is shut only while jobs are through, and then no alarm is set": [
        ("lib/lines.lua", "lines", "if gate.kind == 'r' → true (2)"),
    ],
    "a line that is chosen has a job": [
        ("lib/drop.lua", "drop_from_line", "without job"),
    ],
    "an error is no gate, so the line cannot wait at it, and its first job goes into the lane as well": [
        ("lib/lines.lua", "lines", "without ok"),
    ],
    "the outcome writes the same a moment later": [
        ("lib/twins.lua", "twins", "if dropped → true"),
    ],
    "nothing fails there: the type of a failure is a text, which a line of the history can have": [
        ("lib/twins.lua", "twins", "without ok"),
    ],
    "the copies of the job are swapped twice": [
        ("finish.lua", "others", "without kind == 'K'"),
    ],
    "only the cost is different": [
        ("find.lua", "", "without (want.since or want['until'])"),
        ("find.lua", "failure_of_job", "without failure"),
        ("find.lua", "headers_of_job", "without not headers"),
        ("find.lua", "meets.header", "if header[3] and not has(f[OPTIONS], hea… → false"),
        ("find.lua", "meets.text", "without not same"),
        ("find.lua", "meets.text", "without options"),
        ("find.lua", "meets.text", "without (not same or has(options, part))"),
        ("find.lua", "meets.text", "without failed"),
        ("find.lua", "meets.text", "without (not same or has(failed, part))"),
        ("find.lua", "one_of", "if #values == 1 → false"),
        ("find.lua", "", "without not every"),
        ("find.lua", "is_hit", "without CREATED"),
        ("leaving/ends.lua", "", "if recorded_in == nil → true"),
        ("leaving/ends.lua", "", "if recorded_in → true"),
        ("release.lua", "put_back", "without f[F.twin]"),
        ("lib/lines.lua", "lines", "removed: gate.rank = rank"),
        ("find.lua", "is_hit", "if TASK → true"),
        ("find.lua", "is_hit", "without needed > 0"),
        ("find.lua", "", "without by_run"),
        ("find.lua", "decoded", "if not text → false"),
        ("find.lua", "by_name", "if met == nil → true"),
        ("find.lua", "by_name", "removed: known[task] = met"),
        ("find.lua", "", "removed: meets_fields = by_name(meets_fields)"),
        ("find.lua", "", "if only_task → false"),
        ("find.lua", "may_be_hit", "without TASK"),
        ("restore.lua", "restore", "without write"),
        ("lib/lines.lua", "lines", "if f[4] → true"),
        ("lib/lines.lua", "lines", "without not before"),
        ("lib/lines.lua", "lines", "elseif not alone → true"),
        ("lib/lines.lua", "lines", "if gate.id == id → false"),
        ("replay.lua", "change", "without f[F.gates]"),
        ("replay.lua", "change", "if f[F.gates] and changes[F.gates] → true"),
        ("replay.lua", "change", "without changes[F.gates]"),
        ("index.lua", "write_cursor", "if redis.call('HGET', IN_GROUPS, '@') ~=… → true"),
        ("index.lua", "", "if redis.call('EXISTS', IN_GROUPS, LOOKS… → true"),
        ("index.lua", "", "if jobs == length and not bound and curs… → false"),
        ("fetch.lua", "start", "if f[F.run] → true"),
        ("lib/arrive.lua", "arrive", "without not gates"),
        ("outcome/success.lua", "succeed", "if recorded_in == nil → true"),
        ("lib/lines.lua", "lines", "without moves < 0"),
        ("lib/result.lua", "keep_for", "if not keep → true"),
        ("lib/result.lua", "keep_for", "removed: keeps[ttl] = keep"),
        ("lib/counts.lua", "write_counts", "if not ended → false"),
        ("finish.lua", "settle_run", "if ARGV[i + 2] ~= ending → true"),
        ("fetch.lua", "start", "if f[F.run] or f[F.options] or f[F.due] … → true"),
        ("fetch.lua", "start", "without f[F.run]"),
        ("fetch.lua", "", "without normal_alone and NORMAL"),
        ("early/no_jobs.lua", "", "if normal_alone → false"),
        ("lib/fields.lua", "load", "without #flat < 8 (2)"),
        ("lib/carried.lua", "create", "if not duplicate_of → true"),
        ("lib/carried.lua", "place_now", "if gates → true"),
        ("lib/create.lua", "", "if not create_any → true"),
        ("lib/settle.lua", "ends_made", "if ends → false"),
        ("lib/unless_over.lua", "unless_over", "if not is_superseded → true"),
        ("lib/settle.lua", "settle_job", "if not settle[kind] → true"),
        ("lib/wake.lua", "wake_sleepers", "if next(added) → true"),
        ("double.lua", "", "without next(added)"),
        ("lib/twins.lua", "twins", "if twins_made → false"),
        ("lib/twins.lua", "twins", "removed: twins_made = made"),
        ("fetch.lua", "take", "removed: last[lane] = entries[#entries][1]"),
        ("fetch.lua", "pass_on", "without last[lane] and '(' .. last[lane]"),
        ("lib/drop.lua", "first_in", "without from[lane]"),
        ("lib/lines.lua", "lines", "if not numbers → true"),
        ("lib/lines.lua", "lines", "if known → false"),
        ("lib/lines.lua", "lines", "without id"),
        ("lib/lines.lua", "lines", "if empty[name] == nil → true"),
        ("lib/lines.lua", "lines", "if before ~= gate.id → true"),
        ("lib/lines.lua", "lines", "without known_through[gate.id]"),
        ("lib/lines.lua", "lines", "removed: known_through[gate.id] = known"),
        ("lib/lines.lua", "lines", "without known[rank]"),
        ("lib/lines.lua", "lines", "if through > 0 → false"),
        ("lib/lines.lua", "lines", "removed: seen[lane .. text] = {gates, name}"),
        ("lib/lines.lua", "lines", "if kind == 'r' → true"),
        ("lib/room.lua", "", "if room < jobs → true"),
        ("lib/room.lua", "", "if lengths[i] > 0 → true"),
    ],
    "then every run is judged by its record, which has the same result, one by one": [
        ("finish.lua", "", "removed: entries[lane] = {entry}"),
        ("finish.lua", "", "removed: all_ours[lane] = redis.pcall('XACK', …"),
        ("finish.lua", "", "without all_ours[lane_of[i]] and settle_run"),
    ],
    "a job with a key has a status, unless its record was damaged": [
        ("lib/holder.lua", "holds", "without 'Q'"),
    ],
    "the same HSET writes the field once more, with its sign, and the later value counts": [
        ("lib/carried.lua", "read_carried", "without letter ~= F.idempotency"),
    ],
    "an entry that no arrow wrote is named by no record, so it is dropped for that": [
        ("recover.lua", "recover", "without record"),
        ("recover.lua", "recover", "without job"),
        ("release.lua", "put_back", "without record"),
        ("release.lua", "put_back", "without fields[2]"),
    ],
    "what is not found is not deleted either": [
        ("lib/forget.lua", "forget", "without not found"),
    ],
    "it is deleted a few lines below": [
        ("lib/bury.lua", "bury", "DEL without result_of(job)"),
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
        ("lib/bury.lua", "bury", "without type(problem) == 'table'"),
        ("promote.lua", "", "without type(problem) == 'table'"),
        ("find.lua", "", "without type(at) == 'table'"),
        ("gates/limits.lua", "made.refuse_damaged", "without type(problem) == 'table'"),
    ],
    "servers older than 7.0 name deleted entries, and are refused": [
        ("recover.lua", "walk", "if entry[2] → true"),
    ],
    "a failure without tries has none": [
        ("recover.lua", "give_up", "without 0"),
        ("lib/bury.lua", "bury", "without 0"),
    ],
    "where it differs from the lane, the lane is quarantine, and so is where the job goes": [
        ("recover.lua", "requeue", "without f[F.lane]"),
    ],
    "an error has no items, and is passed over": [
        ("ends_take.lua", "forget_recorders", "if consumers.err → false"),
        ("ends_take.lua", "", "if abandoned ~= '' → true"),
        ("ends_take.lua", "", "removed: gap = {}"),
    ],
    "the recorder reads at once, which makes it anew": [
        ("ends_take.lua", "forget_recorders", "without facts.name ~= recorder"),
    ],
    "nothing is added or subtracted, or the error comes one line later": [
        ("ends_take.lua", "", "without taken > 0"),
        ("ends_done.lua", "", "without type(done) == 'number'"),
        ("ends_done.lua", "", "if type(done) == 'number' and done > 0 → true"),
        ("ends_done.lua", "", "without done > 0"),
    ],
    "the caller asks for the rest again": [
        ("ends_read.lua", "", "if is_there → true"),
    ],
    "servers older than 7.0 leave it out, and are refused": [
        ("ends_take.lua", "take_abandoned", "without {}"),
        ("ends_take.lua", "take_abandoned", "without {} (2)"),
        ("recover.lua", "walk", "without {}"),
    ],
    "what is false or missing in a reply is read as missing": [
        ("survey.lua", "facts_by", "without ''"),
        ("running.lua", "add", "without '' (2)"),
    ],
    "these are the words of Redis, and one kind of server is enough for the run": [
        ("lib/refusal.lua", "refusal_of", "without string.find(err, 'The user executing …"),
    ],
    "in a script that only reads, no test can bring about another error than a missing permission": [
        ("lib/refusal.lua", "refusal_of", "without denied"),
        ("lib/refusal.lua", "refusal_of", "without err"),
    ],
    "a dead record always has its reason": [
        ("early/none_expired.lua", "watch", "without known[4]"),
    ],
    "every server tested raises errors as texts; others may raise tables": [
        ("lib/bury.lua", "bury", "without problem.err"),
        ("promote.lua", "", "without problem.err"),
        ("promote.lua", "", "without type(problem) == 'table' and problem.err"),
        ("find.lua", "", "without at.err"),
        ("find.lua", "", "without type(at) == 'table' and at.err"),
        ("lib/bury.lua", "bury", "without type(problem) == 'table' and problem.err"),
        ("gates/limits.lua", "made.refuse_damaged", "without problem.err"),
        ("gates/limits.lua", "made.refuse_damaged", "without type(problem) == 'table' and problem.err"),
    ],
}

EQUIVALENT: Final[dict[Key, str]] = {key: reason for reason, keys in BY_REASON.items() for key in keys}
