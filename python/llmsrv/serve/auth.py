"""Who may do what: keys, the admin token, and the one decision that both protocols ask for.

Everything is guarded unless it is named here as open: a route or an RPC that is added tomorrow needs a key without
anybody thinking of it. Keys are kept as SHA-256 digests and compared in constant time, all of them at each call.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from llmsrv.caller import Call, Caller, Limits
from llmsrv.config import ServeConfig
from llmsrv.errors import Code, ServiceError
from llmsrv.serve.refusals import RefusalLog

KEY_VARIABLE = "LLMSRV_API_KEY"
ADMIN_VARIABLE = "LLMSRV_ADMIN_TOKEN"
ENVIRONMENT_KEY_NAME = "default"
ADMIN_NAME = "admin"  # of the admin token's owner
KEY_CHARS_MIN, KEY_CHARS_MAX = 16, 1024
NO_LIMITS = Limits()

OPEN_PATHS = frozenset({"/health", "/ready", "/"})  # the page at / holds no figures: it asks for them with a key
METRICS_PATH = "/metrics"
ADMIN_PATHS = frozenset({"/stats"})  # all tenants' figures
OPEN_SERVICES = frozenset({"grpc.health.v1.Health"})
ADMIN_SERVICES = ("llmsrv.v1.AdminService", "grpc.channelz.")


class Access(Enum):
    """Whom a route or an RPC is for."""

    OPEN = "open"
    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as the file has it. The key itself is not kept."""

    name: str
    digest: bytes
    limits: Limits = NO_LIMITS
    weight: float = 1.0
    admin: bool = False


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A [[key]] table."""

    name: str
    key: str | None = None
    sha256: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_streams: int | None = None
    weight: float = 1.0
    admin: bool = False


class Guard:
    """Knows the keys, and decides. Thread rule: the event loop's."""

    def __init__(self, config: ServeConfig, environment: Mapping[str, str] = os.environ) -> None:
        """Raises ValueError, which never shows a key, when a file of keys is missing or wrong."""
        self._config = config
        self._environment = environment
        self._refusals = RefusalLog()
        self._keys: Sequence[ApiKey] = ()
        self._owners: Sequence[tuple[ApiKey, Caller]] = ()  # of the keys, and of the admin token
        self.reload()

    def reload(self) -> None:
        """Reads the files again; who was known keeps what they have used. Raises ValueError and changes nothing."""
        keys = _keys(self._config, self._environment)
        admin_digest = _admin_digest(self._config, self._environment)
        owners = list(keys)
        if admin_digest is not None:
            if any(key.digest == admin_digest for key in keys):
                raise ValueError("admin_token_file: the admin's token is also a key; give it one of its own")
            owners.append(ApiKey(name=ADMIN_NAME, digest=admin_digest, admin=True))
        known, self._owners = self._owners, [(key, self._caller_of(key)) for key in owners]
        self._keys = keys
        kept = [caller for _, caller in self._owners]
        for _, caller in known:
            if caller not in kept:
                caller.revoke()

    def _caller_of(self, key: ApiKey) -> Caller:
        """Whom a key was known for, with its new limits, or somebody new."""
        for known, caller in self._owners:
            if (known.name, known.digest) == (key.name, key.digest):
                if caller.limits != key.limits:
                    caller.set_limits(key.limits)
                return caller
        return Caller(key.name, key.limits, shares_prefixes=self._config.share_prefixes)

    @property
    def key_count(self) -> int:
        """How many keys there are; without any, what is for users is open to everybody."""
        return len(self._keys)

    @property
    def guards(self) -> bool:
        """Whether anybody is ever refused."""
        return bool(self._owners)

    @property
    def weights(self) -> Mapping[str, float]:
        """Shares under the policy "fair", by key."""
        return {key.name: key.weight for key in self._keys}

    def check(self, access: Access, authorization: Sequence[str]) -> Call | None:
        """The call of whoever sends these `authorization` headers; None when nobody is known by a key.

        Raises UNAUTHENTICATED, PERMISSION_DENIED, or RESOURCE_EXHAUSTED when the key's requests are used up.
        """
        if access is Access.OPEN or not self.guards or (access is Access.USER and not self._keys):
            return None
        try:
            return self._call(access, authorization)
        except ServiceError as error:
            self._refusals.note(error.reason)
            raise

    def path_access(self, path: str) -> Access:
        """Whom an HTTP path is for."""
        if path in OPEN_PATHS or (path == METRICS_PATH and self._config.open_metrics):
            return Access.OPEN
        return Access.ADMIN if path in ADMIN_PATHS else Access.USER

    def method_access(self, method: str) -> Access:
        """Whom an RPC is for, by its full name: "/package.Service/Method"."""
        service = method.removeprefix("/").partition("/")[0]
        if service in OPEN_SERVICES:
            return Access.OPEN
        return Access.ADMIN if service.startswith(ADMIN_SERVICES) else Access.USER

    def _call(self, access: Access, authorization: Sequence[str]) -> Call:
        caller, is_admin = self._identified(authorization)
        if access is Access.ADMIN and not is_admin:
            raise ServiceError(
                Code.PERMISSION_DENIED, f"the key {caller.name!r} is not an admin's", metadata={"key": caller.name}
            )
        return Call(caller)

    def _identified(self, authorization: Sequence[str]) -> tuple[Caller, bool]:
        if not authorization:
            message = "no API key: send it as the header authorization: Bearer KEY"
            raise ServiceError(Code.UNAUTHENTICATED, message, reason="MISSING_API_KEY")
        scheme, _, token = authorization[0].strip().partition(" ")
        if len(authorization) > 1 or scheme.lower() != "bearer":
            raise ServiceError(Code.UNAUTHENTICATED, "send one header, authorization: Bearer KEY")
        digest = _digest(token.strip())
        found: tuple[Caller, bool] | None = None
        for key, caller in self._owners:
            if hmac.compare_digest(key.digest, digest):
                found = caller, key.admin
        if found is None:
            raise ServiceError(Code.UNAUTHENTICATED, "this API key is not known here")
        return found


def read_keys(path: str) -> list[ApiKey]:
    """The keys of a file. Raises ValueError that names the file and the key, never what was written as the key."""
    try:
        document = msgspec.toml.decode(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"api_key_file: cannot read {path}: {reason}") from None
    tables = document.pop("key", None)
    if document or not isinstance(tables, list) or not tables:
        raise ValueError(f"api_key_file: {path}: write one [[key]] table for each key, and nothing else")
    keys = []
    for number, table in enumerate(tables, 1):
        try:
            keys.append(_key(table))
        except ValueError as error:
            raise ValueError(f"api_key_file: {path}: key {number}: {error}") from None
    return keys


def _keys(config: ServeConfig, environment: Mapping[str, str]) -> list[ApiKey]:
    keys = [] if config.api_key_file is None else read_keys(config.api_key_file)
    written = environment.get(KEY_VARIABLE)
    if written is not None:
        keys.append(ApiKey(name=ENVIRONMENT_KEY_NAME, digest=_digest(_usable(KEY_VARIABLE, written))))
    for kind in ("name", "digest"):
        seen: set[object] = set()
        for key in keys:
            value = getattr(key, kind)
            if value in seen:
                what = "this name" if kind == "name" else "the same key"
                raise ValueError(f"api_key_file: {key.name!r}: another one has {what}")
            seen.add(value)
    return keys


def _admin_digest(config: ServeConfig, environment: Mapping[str, str]) -> bytes | None:
    path, written = config.admin_token_file, environment.get(ADMIN_VARIABLE)
    if path is None:
        return None if written is None else _digest(_usable(ADMIN_VARIABLE, written))
    if written is not None:
        raise ValueError(f"admin_token_file: cannot be combined with {ADMIN_VARIABLE}")
    try:
        text = Path(path).read_text(encoding="ascii")
    except OSError as error:
        raise ValueError(f"admin_token_file: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"admin_token_file: {path}: the token must be ASCII") from None
    return _digest(_usable(f"admin_token_file: {path}", text.strip()))


def _key(table: Any) -> ApiKey:  # noqa: ANN401
    entry = msgspec.convert(table, _Entry)
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", entry.name) or entry.name == ADMIN_NAME:
        raise ValueError(f"name: 1 to 64 of the characters A-Z a-z 0-9 . _ @ -, and not {ADMIN_NAME!r}")
    if (entry.key is None) == (entry.sha256 is None):
        raise ValueError(f"{entry.name}: needs either key or sha256")
    for field in ("requests_per_minute", "tokens_per_minute", "max_concurrent_streams"):
        value = getattr(entry, field)
        if value is not None and not 1 <= value <= 1 << 40:
            raise ValueError(f"{entry.name}: {field}: must be at least 1; leave it out for no limit")
    if not 0 < entry.weight < float("inf"):
        raise ValueError(f"{entry.name}: weight: must be above 0")
    return ApiKey(
        name=entry.name,
        digest=_entry_digest(entry),
        limits=Limits(
            requests_per_minute=entry.requests_per_minute,
            tokens_per_minute=entry.tokens_per_minute,
            max_concurrent_streams=entry.max_concurrent_streams,
        ),
        weight=entry.weight,
        admin=entry.admin,
    )


def _entry_digest(entry: _Entry) -> bytes:
    if entry.key is not None:
        return _digest(_usable(f"{entry.name}: key", entry.key))
    if not re.fullmatch("[0-9a-fA-F]{64}", entry.sha256 or ""):
        raise ValueError(f"{entry.name}: sha256: must be 64 hexadecimal digits")
    return bytes.fromhex(entry.sha256 or "")


def _usable(what: str, key: str) -> str:
    """The key, if a header can carry it and nobody guesses it."""
    if not key.isascii() or not key.isprintable() or " " in key or not KEY_CHARS_MIN <= len(key) <= KEY_CHARS_MAX:
        raise ValueError(f"{what}: {KEY_CHARS_MIN} to {KEY_CHARS_MAX} printable ASCII characters without spaces")
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
