"""Where the API of Kubernetes is and how to log in: as a pod, or by a kubeconfig.

All of this reads files, so it runs in a thread; and it is read again for every request, since
tokens and certificates are replaced while we run.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from lb.discovery.source import SourceError
from lb.net.files import read_text
from lb.net.tls.contexts import TlsError, load_pair, make_client_context, trust
from lb.settings.problems import shown

POD_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds its token, the authority of the API, and its namespace."""
_MOST: Final = 1 << 20
"""Characters of a file."""
_UNSUPPORTED: Final = {
    "exec": "a command that logs in; use a token or certificates of a service account",
    "auth-provider": "an auth-provider; use a token or certificates of a service account",
    "username": "a password; use a token or certificates of a service account",
    "insecure-skip-tls-verify": "an API that is not verified; give certificate-authority",
    "proxy-url": "a proxy",
}


@dataclass(frozen=True, slots=True)
class Login:
    """Everything that a request to the API needs."""

    url: str
    """Without a slash at its end."""
    namespace: str
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """None where it is plain."""
    server_name: str | None = None
    """What its certificate must hold, where that is not its host."""


def log_in_as_pod(env: Mapping[str, str], folder: str = POD_FOLDER) -> Login:
    """By the service account of our own pod.

    Raises:
        SourceError: we are in none, or it has no token.
    """
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SourceError("this is no pod of Kubernetes, so a kubeconfig is needed")
    token = _read(f"{folder}/token").strip()
    namespace = _read(f"{folder}/namespace").strip()
    context = _new_context()
    _trust(context, f"{folder}/ca.crt")
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    return Login(url, namespace, token, context)


def log_in_by_file(path: str, context_name: str | None = None) -> Login:
    """By a kubeconfig.

    Args:
        path: of the file.
        context_name: which of its contexts; None: the current one.

    Raises:
        SourceError: it cannot be used.
    """
    config = _Config(path)
    name = context_name or str(config.root.get("current-context") or "")
    context = config.entry("contexts", name, "context")
    cluster = config.entry("clusters", str(context.get("cluster") or ""), "cluster")
    user_name = str(context.get("user") or "")
    user = config.entry("users", user_name, "user") if user_name else {}
    for key, what in _UNSUPPORTED.items():
        if user.get(key) or cluster.get(key):
            raise SourceError(f"{shown(path)} asks for {what}")
    url = str(cluster.get("server") or "").rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise SourceError(f"{shown(path)} does not say where the API is (clusters, server)")
    server_name = cluster.get("tls-server-name")
    return Login(
        url,
        str(context.get("namespace") or "default"),
        config.token(user),
        config.tls(cluster, user) if url.startswith("https://") else None,
        str(server_name) if server_name else None,
    )


class _Config:
    """A kubeconfig file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = Path(path).parent
        try:
            root = yaml.safe_load(_read(path))
        except (yaml.YAMLError, RecursionError) as error:
            raise SourceError(f"{shown(path)} is not YAML") from error
        self.root = _mapping(root)

    def entry(self, kind: str, name: str, key: str) -> Mapping[str, object]:
        """One entry of its lists.

        Raises:
            SourceError: there is none of that name.
        """
        entries = self.root.get(kind)
        for each in entries if isinstance(entries, list) else ():
            if _mapping(each).get("name") == name:
                return _mapping(_mapping(each).get(key))
        raise SourceError(f"{shown(self._path)} has no {key} {name!r}")

    def token(self, user: Mapping[str, object]) -> str:
        """The token of a user; empty where there is none. A file goes before the text."""
        file = user.get("tokenFile")
        return self._read(file).strip() if file else str(user.get("token") or "")

    def tls(self, cluster: Mapping[str, object], user: Mapping[str, object]) -> ssl.SSLContext:
        """How to speak TLS with the API."""
        context = _new_context()
        with self._file(cluster, "certificate-authority") as authority:
            if authority:
                _trust(context, authority)
            else:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        with (
            self._file(user, "client-certificate") as certificate,
            self._file(user, "client-key") as key,
        ):
            if certificate and key:
                try:
                    load_pair(context, certificate, key)
                except TlsError as error:
                    raise SourceError(f"{shown(self._path)}: {error}") from error
            elif certificate or key:
                raise SourceError(f"{shown(self._path)}: a certificate needs a key, and a key one")
        return context

    def _read(self, name: object) -> str:
        return _read(str(self._folder / str(name)))

    @contextmanager
    def _file(self, entry: Mapping[str, object], key: str) -> Iterator[str]:
        """The path of a file that is named, or whose content is given; empty where neither is."""
        content, name = entry.get(f"{key}-data"), entry.get(key)
        if not content:
            yield str(self._folder / str(name)) if name else ""
            return
        try:
            data = b64decode(str(content), validate=True)
        except ValueError as error:
            raise SourceError(f"{shown(self._path)}: {key}-data is not base64") from error
        # The TLS library takes keys from files only; this one is nowhere but in memory.
        with open(os.memfd_create(key), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"


def _new_context() -> ssl.SSLContext:
    return make_client_context(["http/1.1"])


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        trust(context, path)
    except TlsError as error:
        raise SourceError(str(error)) from error


def _read(path: str) -> str:
    try:
        return read_text(path, _MOST)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"cannot read {shown(path)}: {getattr(error, 'strerror', error)}"
        ) from error


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
