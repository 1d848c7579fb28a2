"""Authentication with a registry: Docker's stored credentials, Basic and Bearer challenges."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from torchproof._http import failure_text
from torchproof.errors import RegistryError

_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))')
_REFRESH_TOKEN_USER = "<token>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credentials:
    """A name and password, or an identity token. Never printed."""

    username: str = ""
    password: str = ""
    identity_token: str = ""


def stored_credentials(registry: str) -> Credentials | None:
    """Look up what `docker login` stored (its config file, credential helpers); None if nothing.

    Raises `RegistryError` if a configured credential helper fails.
    """
    # Imported only when needed: it takes a third of this program's start-up time.
    import docker.auth  # noqa: PLC0415
    import docker.errors  # noqa: PLC0415

    try:
        found: dict[str, Any] | None = docker.auth.load_config().resolve_authconfig(registry)
    except (docker.errors.DockerException, OSError) as error:
        raise RegistryError(
            f"cannot read the stored credentials of {registry}: {error}",
            fix=f"run `docker login {registry}`, or repair Docker's config.json",
        ) from error
    if not found:
        return None
    token = found.get("IdentityToken") or found.get("identitytoken") or ""
    username = found.get("Username") or found.get("username") or ""
    password = found.get("Password") or found.get("password") or ""
    if username == _REFRESH_TOKEN_USER:
        token, username, password = token or password, "", ""
    if not token and not username:
        return None
    return Credentials(username=username, password=password, identity_token=token)


def pull_scopes(repository: str) -> tuple[str, ...]:
    """Return the scopes that reading a repository needs."""
    return (f"repository:{repository}:pull",)


def push_scopes(repository: str) -> tuple[str, ...]:
    """Return the scopes that writing to a repository needs."""
    return (f"repository:{repository}:pull,push",)


class Authenticator:
    """Answers a registry's 401 challenges; keeps one header for each set of scopes.

    Without `credentials`, the stored ones are looked up when the registry first asks for any.
    """

    def __init__(self, registry: str, http: httpx.Client, credentials: Credentials | None) -> None:
        self._registry = registry
        self._http = http
        self._given = credentials
        self._headers: dict[frozenset[str], str] = {}
        self._lock = threading.Lock()

    @cached_property
    def _credentials(self) -> Credentials | None:
        return self._given or stored_credentials(self._registry)

    def header(self, scopes: Iterable[str]) -> dict[str, str]:
        """Return the headers to send unasked: those of an earlier challenge, or none."""
        with self._lock:
            value = self._headers.get(frozenset(scopes)) or self._headers.get(frozenset())
        return {"Authorization": value} if value else {}

    def answer(self, challenge: str, scopes: Iterable[str]) -> bool:
        """Answer a `WWW-Authenticate` header; return False if there is no new answer.

        Bearer follows the Docker registry token specification (GET with `service` and `scope`,
        POST with `grant_type=refresh_token` for identity tokens).
        """
        wanted = frozenset(scopes)
        scheme, _, rest = challenge.partition(" ")
        parameters = {name.lower(): a or b for name, a, b in _PARAMETER.findall(rest)}
        match scheme.lower():
            case "basic":
                if self._credentials is None or not self._credentials.username:
                    return False
                pair = f"{self._credentials.username}:{self._credentials.password}"
                value = "Basic " + base64.b64encode(pair.encode()).decode()
                key: frozenset[str] = frozenset()
            case "bearer":
                requested = wanted | set(parameters.get("scope", "").split())
                value = f"Bearer {self._token(parameters, sorted(requested))}"
                key = wanted
            case _:
                return False
        with self._lock:
            repeated = self._headers.get(key) == value
            self._headers[key] = value
        return not repeated

    def _token(self, parameters: dict[str, str], scopes: list[str]) -> str:
        realm = parameters.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise RegistryError(
                f"{self._registry} asks for a token, but names no usable realm: {realm!r}"
            )
        try:
            response = self._request_token(realm, parameters.get("service", ""), scopes)
            response.raise_for_status()
            document = response.json()
            token = document.get("token") or document.get("access_token")
        except (httpx.HTTPError, ValueError, AttributeError) as error:
            raise RegistryError(
                f"no token for {self._registry} from {realm}: {failure_text(error)}",
                fix=f"run `docker login {self._registry}`",
            ) from error
        if not isinstance(token, str) or not token:
            raise RegistryError(f"{realm} answered, but gave no token for {self._registry}")
        return token

    def _request_token(self, realm: str, service: str, scopes: list[str]) -> httpx.Response:
        stored = self._credentials
        if stored and stored.identity_token:
            form = {
                "grant_type": "refresh_token",
                "service": service,
                "client_id": "torchproof",
                "scope": " ".join(scopes),
                "refresh_token": stored.identity_token,
            }
            return self._http.post(realm, data=form)
        query = {"service": [service] if service else [], "scope": scopes}
        auth = httpx.BasicAuth(stored.username, stored.password) if stored else None
        try:
            return self._http.get(realm, params=query, auth=auth)
        except httpx.TransportError:  # the server closed a kept-alive connection
            return self._http.get(realm, params=query, auth=auth)
