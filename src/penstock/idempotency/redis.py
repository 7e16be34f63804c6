"""Keys in Redis, each a hash that one script at a time reads and writes; the scripts are handed the machine's table.

An entry expires by Redis' own hand. As durable as the server is set up to be: one that forgets a key it has confirmed
lets a request run a second time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.errors import SettingsInvalid, Unavailable
from penstock.idempotency.model import Address, Entry, Seen, Wish
from penstock.idempotency.rules import state_at
from penstock.idempotency.states import IDEMPOTENCY_KEY

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["RedisStore"]

T = TypeVar("T")

SCAN_COUNT = 200
NUMBERS = frozenset({"attempt", "created_at", "lease_until", "expires_at", "finished_at"})

# The last argument is the time in microseconds, or nothing for the server's own.
TIME = """
local function now_us()
  if ARGV[#ARGV] ~= '' then return tonumber(ARGV[#ARGV]) end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local function text(n) return string.format('%.0f', n) end
local function keep_until(instant)
  if ARGV[#ARGV] == '' then redis.call('PEXPIREAT', KEYS[1], text(math.ceil(instant / 1000))) end
end
local now = now_us()
"""

INSERT = (
    TIME
    + """
local state, owner, fingerprint, key, label, lease, retention = unpack(ARGV)
if redis.call('EXISTS', KEYS[1]) == 0 then
  local ends = now + tonumber(retention)
  redis.call('HSET', KEYS[1], 'state', state, 'owner', owner, 'fingerprint', fingerprint, 'key', key, 'label', label,
    'attempt', '1', 'created_at', text(now), 'lease_until', text(now + tonumber(lease)), 'expires_at', text(ends))
  keep_until(math.max(ends, now + tonumber(lease)))
  return 1
end
return {text(now), redis.call('HGETALL', KEYS[1])}
"""
)

READ = TIME + "return {text(now), redis.call('HGETALL', KEYS[1])}"

TAKE_OVER = (
    TIME
    + """
local before, owner, state, lease = unpack(ARGV)
local seen = redis.call('HMGET', KEYS[1], 'owner', 'state', 'lease_until', 'expires_at')
if seen[1] ~= before then return 0 end
if seen[2] == 'InProgress' then
  if tonumber(seen[3]) > now then return 0 end
elseif seen[2] ~= 'Indeterminate' then
  return 0
end
redis.call('HSET', KEYS[1], 'state', state, 'owner', owner, 'lease_until', text(now + tonumber(lease)))
redis.call('HINCRBY', KEYS[1], 'attempt', 1)
keep_until(math.max(tonumber(seen[4]), now + tonumber(lease)))
return 1
"""
)

RENEW = (
    TIME
    + """
local owner, lease = unpack(ARGV)
local seen = redis.call('HMGET', KEYS[1], 'owner', 'state', 'expires_at')
if seen[1] ~= owner or seen[2] ~= 'InProgress' then return 0 end
redis.call('HSET', KEYS[1], 'lease_until', text(now + tonumber(lease)))
keep_until(math.max(tonumber(seen[3]), now + tonumber(lease)))
return 1
"""
)

# `sources` are the states that admit the event, each between two commas.
MOVE = (
    TIME
    + """
local owner, sources, target, due, answer, retention = unpack(ARGV)
local seen = redis.call('HMGET', KEYS[1], 'owner', 'state', due == '' and 'expires_at' or due)
if seen[1] ~= owner or not string.find(sources, ',' .. seen[2] .. ',', 1, true) then return 0 end
if due ~= '' and tonumber(seen[3]) > now then return 0 end
if target == 'Absent' then
  redis.call('DEL', KEYS[1])
elseif target == 'Completed' then
  local ends = now + tonumber(retention)
  redis.call('HSET', KEYS[1], 'state', target, 'finished_at', text(now), 'expires_at', text(ends))
  if answer ~= '' then redis.call('HSET', KEYS[1], 'answer', string.sub(answer, 2)) end
  keep_until(ends)
else
  redis.call('HSET', KEYS[1], 'state', target)
end
return 1
"""
)

# For clocks that tests hold still; on the server's own clock entries go by themselves.
REMOVE_GONE = (
    TIME
    + """
local seen = redis.call('HMGET', KEYS[1], 'state', 'lease_until', 'expires_at')
if not seen[1] or tonumber(seen[3]) > now then return 0 end
if seen[1] == 'InProgress' and tonumber(seen[2]) > now then return 0 end
return redis.call('DEL', KEYS[1])
"""
)


class RedisStore:
    """Keys in one Redis database. The client must not decode answers."""

    def __init__(self, client: Redis, *, prefix: str = "penstock:idempotency", clock: Clock | None = None) -> None:
        self._client, self._prefix = client, prefix
        self._clock = clock or SystemClock()
        self._scripts = {
            text: client.register_script(text) for text in (INSERT, READ, TAKE_OVER, RENEW, MOVE, REMOVE_GONE)
        }

    @classmethod
    def connect(cls, url: str, *, prefix: str = "penstock:idempotency", clock: Clock | None = None) -> RedisStore:
        """A store at a `redis://` or `rediss://` URL; connections are made when needed."""
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise SettingsInvalid("keys in Redis need its client: install penstock[redis]") from None
        return cls(Redis.from_url(url), prefix=prefix, clock=clock)

    async def insert(self, address: Address, wish: Wish) -> Seen | None:
        state = IDEMPOTENCY_KEY.after("Absent", "claimed")
        found = await self._run(
            INSERT,
            self._name(address),
            (state, wish.owner, wish.fingerprint, address.key, wish.label, wish.lease_us, wish.retention_us),
        )
        return None if found == 1 else _seen(found)

    async def take_over(self, address: Address, seen: Entry, wish: Wish) -> bool:
        state = IDEMPOTENCY_KEY.after(IDEMPOTENCY_KEY.after("Indeterminate", "released"), "claimed")
        taken = await self._run(TAKE_OVER, self._name(address), (seen.owner, wish.owner, state, wish.lease_us))
        return bool(taken)

    async def renew(self, address: Address, owner: str, lease_us: int) -> bool:
        return bool(await self._run(RENEW, self._name(address), (owner, lease_us)))

    async def move(
        self,
        address: Address,
        event: str,
        *,
        owner: str,
        only_due: bool = False,
        answer: bytes | None = None,
        retention_us: int = 0,
    ) -> bool:
        (target,) = set(IDEMPOTENCY_KEY.targets(event).values())
        sources = f",{','.join(IDEMPOTENCY_KEY.sources(event))},"
        due = "" if not only_due else "lease_until" if event == "lease_expired" else "expires_at"
        kept = b"" if answer is None else b"=" + answer
        return bool(await self._run(MOVE, self._name(address), (owner, sources, target, due, kept, retention_us)))

    async def read(self, address: Address) -> Seen:
        return _seen(await self._run(READ, self._name(address), ()))

    async def sweep(self, limit: int) -> int:
        if self._clock.is_real:
            return 0
        return await self._each(self._any(), limit, lambda name: self._run(REMOVE_GONE, name, ()))

    async def erase(self, scope: str, limit: int) -> int:
        return await self._each(
            f"{self._prefix}:{scope}:*", limit, lambda name: self._call(lambda: self._client.hdel(name, "answer"))
        )

    async def unsettled(self, limit: int) -> list[Entry]:
        found: list[Entry] = []

        async def look(name: bytes | str) -> bool:
            seen = _seen(await self._run(READ, name, ()))
            is_late = state_at(seen.entry, seen.now_us) == "Indeterminate"
            if is_late and seen.entry is not None:
                found.append(seen.entry)
            return is_late

        await self._each(self._any(), limit, look)
        return sorted(found, key=lambda entry: entry.created_at)

    async def close(self) -> None:
        await self._client.aclose()

    def _any(self) -> str:
        return f"{self._prefix}:*"

    def _name(self, address: Address) -> str:
        return f"{self._prefix}:{address.scope}:{address.id}"

    async def _each(self, pattern: str, limit: int, act: Callable[[bytes | str], Awaitable[object]]) -> int:
        """Do something with the entries of a pattern until it was true `limit` times; how often it was."""
        done, cursor = 0, 0
        while True:
            cursor, names = await self._call(partial(self._client.scan, cursor, match=pattern, count=SCAN_COUNT))
            for name in names:
                done += bool(await act(name))
                if done == limit:
                    return done
            if cursor == 0:
                return done

    async def _run(self, script: str, name: str | bytes, values: Sequence[Any]) -> Any:
        now = "" if self._clock.is_real else str(self._clock.now_us())
        return await self._call(partial(self._scripts[script], keys=[name], args=[*values, now]))

    async def _call(self, ask: Callable[[], Awaitable[T]]) -> T:
        from redis.exceptions import RedisError

        try:
            return await ask()
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis cannot be used now: {error}") from error


def _seen(reply: Sequence[Any]) -> Seen:
    now_us, flat = int(reply[0]), reply[1]
    if not flat:
        return Seen(None, now_us)
    found = {flat[at].decode(): flat[at + 1] for at in range(0, len(flat), 2)}
    values: dict[str, Any] = {
        name: int(value) if name in NUMBERS else value if name == "answer" else value.decode()
        for name, value in found.items()
    }
    return Seen(Entry(**({"finished_at": None, "answer": None} | values)), now_us)
