#!lua flags=allow-oom
-- include: _call _by_worker _found _run _check _race _prompts _buffers _workers _entries
-- RESERVED -> RELEASED: given back. An entry that is in flight no longer is left as it is.
-- KEYS  [7] the entry; builds prompt:<its>, worker:<its>, buffer:<window>, entry:<surplus>
-- ARGV  [5] entry, reason: failed | retry | cancelled | lost, why, for a person
-- returns OK, 1 if it was in flight, else 0
if redis.call('HGET', KEYS[FIXED + 1], 'state') ~= 'RESERVED' then return reply('OK', 0) end
open_window()
release(ARGV[5], ARGV[6], ARGV[7])
settle()
return reply('OK', 1)
