"""Logins, and that they work with a real server."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from lb.discovery.kubernetes import KubernetesSource
from lb.discovery.kubernetes_login import Login, log_in_as_pod, log_in_by_file
from lb.discovery.source import Entries, SourceError
from lb.net.file_thread import FileThread
from lb.settings.kubernetes import KubernetesSettings
from tests.fakes.certificates import CLIENT, Authority
from tests.fakes.kubernetes import KubernetesApi, endpoint, server_context


class Cluster:
    """An API with TLS, and what a pod or a user needs to log in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = self.authority.write(folder)
        self.api = KubernetesApi()
        self.api.tokens = {"a-token"}
        self.api.put("a", [endpoint("10.0.0.1", "p")])

    async def start(self, *names: str) -> None:
        pair = self.authority.issue(*(names or ("127.0.0.1",)))
        await self.api.start(server_context(self.authority, pair, self.folder))

    def account(self, token: str = "a-token") -> str:
        """The folder of a service account."""
        folder = self.folder / "account"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(f"{token}\n")
        (folder / "namespace").write_text("serving")
        (folder / "ca.crt").write_bytes(self.authority.pem)
        return str(folder)

    def kubeconfig(
        self, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None
    ) -> str:
        server = f"https://127.0.0.1:{self.api.port}/"
        cluster = {"server": server, "certificate-authority": "ca.crt", **(cluster or {})}
        context = {"cluster": "c", "user": "u", "namespace": "serving"}
        return self.write(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "one",
                "contexts": [
                    {"name": "one", "context": context},
                    {"name": "two", "context": {"cluster": "other"}},
                ],
                "clusters": [
                    {"name": "c", "cluster": cluster},
                    {"name": "other", "cluster": {"server": "http://other:8001"}},
                ],
                "users": [{"name": "u", "user": {"token": "a-token"} if user is None else user}],
            }
        )

    def write(self, tree: object) -> str:
        path = self.folder / "config"
        path.write_text(yaml.safe_dump(tree))
        return str(path)

    async def found(self, login: Login) -> Entries:
        """What a source finds that logs in so; it is found before anything is watched."""
        settings = KubernetesSettings(service="triton", http_port="http")
        source = KubernetesSource(settings, Random(1), FileThread(), most=9, log_in=lambda: login)
        try:
            return await source.next()
        finally:
            await self.api.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def env(port: int = 443, host: str = "127.0.0.1") -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}


async def test_a_pod_logs_in_with_its_account(cluster: Cluster) -> None:
    await cluster.start()
    login = log_in_as_pod(env(cluster.api.port), cluster.account())
    assert (login.namespace, login.token) == ("serving", "a-token")
    assert len(await cluster.found(login)) == 1


async def test_another_authority_is_not_trusted(cluster: Cluster) -> None:
    await cluster.start()
    cluster.authority = Authority()
    login = log_in_as_pod(env(cluster.api.port), cluster.account())
    with pytest.raises(SourceError, match=r"that it should have: .*verify failed"):
        await cluster.found(login)


def test_tokens_are_read_again_and_never_shown(cluster: Cluster) -> None:
    folder = cluster.account("first")
    assert log_in_as_pod(env(), folder).token == "first"
    cluster.account("second")
    login = log_in_as_pod(env(host="fd00::1"), folder)
    assert (login.token, login.url) == ("second", "https://[fd00::1]:443")
    assert "second" not in repr(login)


def test_outside_of_a_pod_a_kubeconfig_is_needed(cluster: Cluster) -> None:
    with pytest.raises(SourceError, match="this is no pod of Kubernetes"):
        log_in_as_pod({}, cluster.account())
    with pytest.raises(SourceError, match=r"cannot read /no/token: No such file"):
        log_in_as_pod(env(), "/no")


async def test_a_kubeconfig_leads_to_the_api(cluster: Cluster) -> None:
    await cluster.start()
    assert len(await cluster.found(log_in_by_file(cluster.kubeconfig()))) == 1


async def test_its_user_may_have_a_certificate_inside(cluster: Cluster) -> None:
    cluster.api.tokens = set()
    await cluster.start("kubernetes.test")
    pair = cluster.authority.issue("user", usage=CLIENT)
    path = cluster.kubeconfig(
        {
            "certificate-authority": None,
            "certificate-authority-data": b64encode(cluster.authority.pem).decode(),
            "tls-server-name": "kubernetes.test",
        },
        {
            "client-certificate-data": b64encode(pair.certificate).decode(),
            "client-key-data": b64encode(pair.key).decode(),
        },
    )
    assert len(await cluster.found(log_in_by_file(path))) == 1


def test_its_other_contexts_can_be_asked_for(cluster: Cluster) -> None:
    login = log_in_by_file(cluster.kubeconfig(), "two")
    assert login == Login("http://other:8001", "default")


def test_its_token_may_be_in_a_file_beside_it(cluster: Cluster) -> None:
    (cluster.folder / "token").write_text("t\n")
    login = log_in_by_file(cluster.kubeconfig(user={"tokenFile": "token", "token": "other"}))
    assert login.token == "t"


@pytest.mark.parametrize(
    ("changed", "user", "words"),
    [
        ({"server": "ftp://x"}, {}, "does not say where the API is"),
        ({"insecure-skip-tls-verify": True}, {}, "asks for an API that is not verified"),
        ({"proxy-url": "http://p"}, {}, "asks for a proxy"),
        ({}, {"exec": {"command": "aws"}}, "asks for a command that logs in; use a token"),
        ({}, {"username": "u"}, "asks for a password"),
        ({}, {"client-key": "k"}, "a certificate needs a key"),
        ({}, {"client-key": "k", "client-certificate": "c"}, "cannot read .*/c: No such"),
        ({"certificate-authority-data": "?"}, {}, "certificate-authority-data is not base64"),
        ({"certificate-authority": "no"}, {}, "cannot read .*/no: No such file"),
    ],
)
def test_what_we_cannot_do_is_said(
    cluster: Cluster, changed: dict[str, Any], user: dict[str, Any], words: str
) -> None:
    path = cluster.kubeconfig(changed, user)
    with pytest.raises(SourceError, match=words):
        log_in_by_file(path)


def test_what_is_no_kubeconfig_is_refused(cluster: Cluster) -> None:
    for tree in (7, {}, {"contexts": 7}, {"contexts": [7]}):
        with pytest.raises(SourceError, match="has no context ''"):
            log_in_by_file(cluster.write(tree))
    with pytest.raises(SourceError, match="has no context 'x'"):
        log_in_by_file(cluster.kubeconfig(), "x")
    (cluster.folder / "config").write_text("{[")
    with pytest.raises(SourceError, match="is not YAML"):
        log_in_by_file(str(cluster.folder / "config"))
    with pytest.raises(SourceError, match="cannot read /no: No such file"):
        log_in_by_file("/no")
