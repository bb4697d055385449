"""Mutants that no test can notice, and why: (file, line as it was, what was done) → reason.

Lines that are changed have to be thought about anew: then their entries here fit no mutant any more.
"""

# ruff: noqa: E501 - lines of scripts, quoted

from __future__ import annotations

from typing import Final

Key = tuple[str, str, str]

BY_REASON: Final[dict[str, list[Key]]] = {
    "an error of redis.pcall is a table without elements: what follows comes to the same": [
        ("beat.lua", "if page.err then break end", "if page.err → false"),
        (
            "enqueue.lua",
            "if known.err or known[1] ~= task or known[2] ~= redis.sha1hex(args) then return -1 end",
            "without 'known.err' in: known.err or known[1] ~= task or known[2] ~= redis.sha1hex(args)",
        ),
        (
            "fetch.lua",
            "if not mine.err and #mine == 1 then admit(lane, entry, ARGV[i + 2], tonumber(ARGV[i + 3]) or 1) end",
            "without 'not mine.err' in: not mine.err and #mine == 1",
        ),
        (
            "fetch.lua",
            "local due = not head.err and head[2] and math.max(0, head[2] - now)",
            "without 'not head.err' in: not head.err and head[2] and math.max(0, head[2] - now)",
        ),
        ("gc.lua", "if consumers.err then return 0 end", "if consumers.err → false"),
        (
            "lib/fields.lua",
            "if flat.err or #flat == 0 then return false end",
            "without 'flat.err' in: flat.err or #flat == 0",
        ),
        (
            "lib/forget.lua",
            "if known.err or known[1] ~= 'dlq/' .. entry then return 1 end",
            "without 'known.err' in: known.err or known[1] ~= 'dlq/' .. entry",
        ),
        (
            "purge.lua",
            "if groups.err or not groups[1] then return '-' end",
            "without 'groups.err' in: groups.err or not groups[1]",
        ),
        (
            "watch.lua",
            "if known.err or not task then return {'gone', false, false} end",
            "without 'known.err' in: known.err or not task",
        ),
    ],
    "only the cost is different": [
        (
            "fetch.lua",
            "if f.w then starts = select(3, run_of(f.w)) + 1 end",
            "if f.w → true",
        ),
        (
            "fetch.lua",
            "if f.w or f.o or deliveries > 1 then",
            "if f.w or f.o or deliveries > 1 → true",
        ),
        (
            "lib/settle.lua",
            "if history then redis.call('PEXPIRE', history_of(job), ttl) end",
            "if history → true",
        ),
        (
            "lib/settle.lua",
            "local known = plain and {} or redis.call('HMGET', record, 'W', 'k', 'H', 'L')",
            "without 'plain and {}' in: plain and {} or redis.call('HMGET', record, 'W', 'k', 'H', 'L')",
        ),
    ],
    "then every run is judged by its record, which says the same, one by one": [
        (
            "finish.lua",
            "if ids then ids[#ids + 1] = entry else entries[lane] = {entry} end",
            "removed: entries[lane] = {entry}",
        ),
        (
            "finish.lua",
            "all_ours[lane] = redis.pcall('XACK', prefix .. lane, GROUP, unpack(ids)) == #ids",
            "removed: all_ours[lane] = redis.pcall('XACK', prefix .. lane, GROUP, unpack(ids)) == #ids",
        ),
        (
            "finish.lua",
            "answers[#answers + 1] = (all_ours[lane_of[i]] and settle_run or settle_by_record)(i)",
            "without 'all_ours[lane_of[i]] and settle_run' in: all_ours[lane_of[i]] and settle_run or settle_by_record",
        ),
    ],
    "false and nil are the same here": [
        (
            "enqueue.lua",
            "return job and redis.call('EXISTS', record_of(job)) == 1 and job or nil",
            "without 'nil' in: job and redis.call('EXISTS', record_of(job)) == 1 and job or nil",
        ),
    ],
    "the same HSET writes the field once more, with its sign, and the later value counts": [
        (
            "enqueue.lua",
            "if letter ~= 'k' and letter ~= 'window' then",
            "without 'letter ~= 'k'' in: letter ~= 'k' and letter ~= 'window'",
        ),
    ],
    "an entry that no arrow wrote is named by no record, so it is dropped for that": [
        ("recover.lua", "local f = record and load(record)", "without 'record' in: record and load(record)"),
        ("recover.lua", "local record = job and record_of(job)", "without 'job' in: job and record_of(job)"),
        ("release.lua", "local f = record and load(record)", "without 'record' in: record and load(record)"),
        (
            "release.lua",
            "local job, record = fields[2], fields[2] and record_of(fields[2])",
            "without 'fields[2]' in: fields[2] and record_of(fields[2])",
        ),
    ],
    "every entry has a field": [
        ("lib/forget.lua", "if not job then return 1 end", "if not job → false"),
        (
            "purge.lua",
            "local f = job and load(record_of(job))",
            "without 'job' in: job and load(record_of(job))",
        ),
    ],
    "what is not found is not deleted either": [
        (
            "lib/forget.lua",
            "if not found or redis.call('XDEL', dlq, entry) ~= 1 then return 0 end",
            "without 'not found' in: not found or redis.call('XDEL', dlq, entry) ~= 1",
        ),
    ],
    "it is deleted a few lines below": [
        (
            "lib/settle.lua",
            "if redis.call('TYPE', record).ok ~= 'hash' then redis.call('DEL', record, result_of(job)) end",
            "DEL without result_of(job)",
        ),
    ],
    "the record has it already, wherever a job is cancelled": [
        (
            "lib/settle.lua",
            "redis.call('HSET', record, 's', 'K', 'z', stamp, 'y', cjson.decode(envelope).cancelled, 'p', place)",
            "HSET without 'p', place",
        ),
    ],
    "PEXPIRE 0 deletes what was written": [
        (
            "lib/settle.lua",
            "if ttl ~= '0' and envelope ~= '' then",
            "if ttl ~= '0' and envelope ~= '' → true",
        ),
        (
            "lib/settle.lua",
            "if ttl ~= '0' and envelope ~= '' then",
            "without 'ttl ~= '0'' in: ttl ~= '0' and envelope ~= ''",
        ),
    ],
    "an outcome without a value has no lifetime": [
        (
            "lib/settle.lua",
            "if ttl ~= '0' and envelope ~= '' then",
            "without 'envelope ~= ''' in: ttl ~= '0' and envelope ~= ''",
        ),
    ],
    "a string has no err": [
        (
            "lib/settle.lua",
            "local text = type(problem) == 'table' and problem.err or tostring(problem)",
            "without 'type(problem) == 'table'' in: type(problem) == 'table' and problem.err",
        ),
    ],
    "servers older than 7.0 name deleted entries, and are refused": [
        ("recover.lua", "if entry[2] then recover(lane, entry[1], entry[2]) end", "if entry[2] → true"),
    ],
    "a failure without tries has none": [
        (
            "recover.lua",
            "type = 'CrashLoop', traceback = '', reason = 'crash_loop', tries = tonumber(f.n) or 0,",
            "without '0' in: tries = tonumber(f.n) or 0",
        ),
    ],
    "where it differs from the lane, the lane is quarantine, and so is where the job goes": [
        ("recover.lua", "local home = f.m or lane", "without 'f.m' in: f.m or lane"),
    ],
    "servers older than 7.0 leave it out, and are refused": [
        ("recover.lua", "vanished = vanished + #(page[3] or {})", "without '{}' in: page[3] or {}"),
    ],
    "a dead record always says why": [
        (
            "watch.lua",
            "if status == 'D' and known[4] then return {'end', task, '{\"dead\":' .. known[4] .. '}'} end",
            "without 'known[4]' in: status == 'D' and known[4]",
        ),
    ],
    "every server tested raises errors as texts; others may raise tables": [
        (
            "lib/settle.lua",
            "local text = type(problem) == 'table' and problem.err or tostring(problem)",
            "without 'problem.err' in: type(problem) == 'table' and problem.err",
        ),
        (
            "lib/settle.lua",
            "local text = type(problem) == 'table' and problem.err or tostring(problem)",
            "without 'type(problem) == 'table' and problem.err' in: type(problem) == 'table' and problem.err or tostring(problem)",
        ),
    ],
}

EQUIVALENT: Final[dict[Key, str]] = {key: reason for reason, keys in BY_REASON.items() for key in keys}
