"""What the gate asks of whom."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest

from lb.access.gate import ControlRule, Credentials, FieldLine, Gate, GateRules, LimitRule
from lb.access.limits import Limit
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from lb.domain.client import Client, TrustedProxies
from lb.domain.errors import RequestRefused
from lb.domain.operation import Operation, OperationKind, Treatment
from lb.domain.outcome import Reason

INFER = Operation("ModelInfer", OperationKind.INFERENCE)
LOAD = Operation("RepositoryModelLoad", OperationKind.CONTROL)
HEALTH = Operation("ServerLive", OperationKind.READ, Treatment.ANSWER)
SECRET = b"0123456789abcdef"
FIELDS = [(b"authorization", b"Bearer " + SECRET)]


def client(
    address: str = "192.0.2.1", *, is_local: bool = False, is_trusted: bool = False
) -> Client:
    parsed = ip_address(address)
    return Client(f"{address}:1", parsed, parsed, is_local, False, is_trusted)


LOCAL = client("127.0.0.1", is_local=True)
REMOTE = client()


def book(*roles: Role) -> TokenBook:
    return TokenBook([Token("key", digest_of(SECRET), frozenset(roles))])


def made(gate: Gate, operation: Operation, fields: Sequence[FieldLine] = ()) -> Credentials:
    credentials = gate.credentials(
        operation, fields, is_control=operation.kind is OperationKind.CONTROL
    )
    assert credentials is not None
    return credentials


def refusal(gate: Gate, credentials: Credentials, who: Client, now: float = 0.0) -> Reason | None:
    """Why a request is refused; None when it passes. It is over at once."""
    try:
        permit = gate.admit(credentials, gate.identify(credentials), who, now)
    except RequestRefused as refused:
        return refused.reason
    if permit is not None:
        permit.release()
    return None


# Nothing configured


def test_by_default_only_control_is_asked() -> None:
    gate = Gate()
    assert gate.credentials(INFER, [], is_control=False) is None
    assert gate.credentials(HEALTH, [], is_control=False) is None
    assert gate.noted == frozenset()
    assert gate.credentials(LOAD, [], is_control=True) is not None


# Control


def test_control_is_for_this_machine() -> None:
    gate = Gate()
    assert refusal(gate, made(gate, LOAD), LOCAL) is None
    assert refusal(gate, made(gate, LOAD), REMOTE) is Reason.CONTROL_REFUSED


def test_the_refusal_says_what_to_configure() -> None:
    gate = Gate()
    with pytest.raises(
        RequestRefused, match=r"RepositoryModelLoad.*access\.control\.networks.*role"
    ):
        gate.admit(made(gate, LOAD), None, REMOTE, 0.0)


def test_loopback_counts_for_nothing_when_it_is_switched_off() -> None:
    gate = Gate(GateRules(control=ControlRule(loopback=False)))
    assert refusal(gate, made(gate, LOAD), LOCAL) is Reason.CONTROL_REFUSED


def test_a_proxy_on_this_machine_speaks_for_others() -> None:
    proxies = TrustedProxies((ip_network("127.0.0.0/8"),))
    gate = Gate(GateRules(proxies=proxies))
    proxy = client("127.0.0.1", is_local=True, is_trusted=True)
    assert refusal(gate, made(gate, LOAD), proxy) is Reason.CONTROL_REFUSED


def test_networks_may_control_by_their_real_address() -> None:
    rules = GateRules(
        control=ControlRule(networks=(ip_network("192.0.2.0/24"),)),
        proxies=TrustedProxies((ip_network("10.0.0.0/8"),)),
    )
    gate = Gate(rules)
    proxy = client("10.0.0.1", is_trusted=True)
    for who, hops, reason in (
        (REMOTE, b"", None),
        (client("198.51.100.1"), b"", Reason.CONTROL_REFUSED),
        (client("198.51.100.1"), b"192.0.2.1", Reason.CONTROL_REFUSED),
        (proxy, b"192.0.2.7", None),
        (proxy, b"192.0.2.7, 198.51.100.1", Reason.CONTROL_REFUSED),
    ):
        credentials = made(gate, LOAD, [(b"x-forwarded-for", hops)] if hops else [])
        assert refusal(gate, credentials, who) is reason


def test_a_token_with_the_role_may_control_from_anywhere() -> None:
    gate = Gate(tokens=book(Role.CONTROL))
    assert refusal(gate, made(gate, LOAD, FIELDS), REMOTE) is None
    assert refusal(gate, made(gate, LOAD), REMOTE) is Reason.CONTROL_REFUSED
    assert gate.credentials(INFER, FIELDS, is_control=False) is None


# Tokens


def test_requests_need_a_token_once_one_is_for_them() -> None:
    gate = Gate(GateRules(needs_token=True), book(Role.INFER))
    assert refusal(gate, made(gate, INFER, FIELDS), REMOTE) is None
    assert refusal(gate, made(gate, INFER), LOCAL) is Reason.UNAUTHENTICATED
    wrong = [(b"authorization", b"Bearer 0123456789abcdeX")]
    assert refusal(gate, made(gate, INFER, wrong), LOCAL) is Reason.UNAUTHENTICATED
    assert gate.requests == {"key": 1}


def test_the_token_may_stand_in_another_header() -> None:
    gate = Gate(GateRules(needs_token=True, header=b"x-api-key"), book(Role.INFER))
    assert refusal(gate, made(gate, INFER, [(b"x-api-key", SECRET)]), REMOTE) is None
    assert refusal(gate, made(gate, INFER, FIELDS), REMOTE) is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("roles", "operation", "who", "reason"),
    [
        ([Role.INFER], LOAD, REMOTE, Reason.CONTROL_REFUSED),
        ([Role.INFER], LOAD, LOCAL, None),
        ([Role.CONTROL], LOAD, REMOTE, None),
        ([Role.CONTROL], INFER, LOCAL, Reason.FORBIDDEN),
        ([Role.INFER, Role.CONTROL], INFER, REMOTE, None),
        ([Role.READ, Role.OPERATE], INFER, LOCAL, Reason.FORBIDDEN),
        ([Role.OPERATE], LOAD, LOCAL, Reason.FORBIDDEN),
    ],
)
def test_a_token_allows_what_its_roles_say(
    roles: list[Role], operation: Operation, who: Client, reason: Reason | None
) -> None:
    gate = Gate(GateRules(needs_token=True), book(*roles))
    assert refusal(gate, made(gate, operation, FIELDS), who) is reason


def test_health_is_open_unless_told() -> None:
    assert Gate(GateRules(needs_token=True)).credentials(HEALTH, [], is_control=False) is None
    gate = Gate(GateRules(needs_token=True, open_health=False), book(Role.INFER))
    assert refusal(gate, made(gate, HEALTH), LOCAL) is Reason.UNAUTHENTICATED


def test_a_remembered_head_is_looked_up_again_when_tokens_change() -> None:
    tokens = book(Role.INFER)
    gate = Gate(GateRules(needs_token=True), tokens)
    credentials = made(gate, INFER, FIELDS)
    assert refusal(gate, credentials, REMOTE) is None
    tokens.replace([])
    assert refusal(gate, credentials, REMOTE) is Reason.UNAUTHENTICATED
    tokens.replace(book(Role.INFER).tokens)
    assert refusal(gate, credentials, REMOTE) is None


# Limits


def test_limits_tell_clients_apart_as_their_rule_says() -> None:
    for rule, same, other in (
        (LimitRule(Limit(rate=1.0)), (REMOTE, []), (client("192.0.2.2"), [])),
        (
            LimitRule(Limit(rate=1.0), by_header=b"x-tenant"),
            (REMOTE, [(b"x-tenant", b"a")]),
            (REMOTE, [(b"x-tenant", b"b")]),
        ),
        (LimitRule(Limit(rate=1.0), by_token=True), (REMOTE, FIELDS), (REMOTE, [])),
    ):
        gate = Gate(GateRules(limits=(rule,)), book(Role.CONTROL))
        assert refusal(gate, made(gate, INFER, same[1]), same[0]) is None
        assert refusal(gate, made(gate, INFER, same[1]), same[0]) is Reason.RATE_LIMITED
        assert refusal(gate, made(gate, INFER, other[1]), other[0]) is None


def test_limits_tell_clients_apart_by_the_end_of_a_long_header() -> None:
    gate = Gate(GateRules(limits=(LimitRule(Limit(rate=1.0), by_header=b"x-tenant"),)))
    for end, expected in (b"a", None), (b"a", Reason.RATE_LIMITED), (b"b", None):
        fields = [(b"x-tenant", b"t" * 20_000 + end)]
        assert refusal(gate, made(gate, INFER, fields), REMOTE) is expected


def test_long_headers_of_clients_are_not_kept() -> None:
    gate = Gate(GateRules(limits=(LimitRule(Limit(rate=0.001), by_header=b"x-tenant"),)))
    tracemalloc.start()
    try:
        for number in range(500):
            fields = [(b"x-tenant", b"%d" % number + b"t" * 20_000)]
            assert refusal(gate, made(gate, INFER, fields), REMOTE) is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000


def test_a_limit_says_when_to_come_again() -> None:
    gate = Gate(GateRules(limits=(LimitRule(Limit(rate=0.1)),)))
    credentials = made(gate, INFER)
    gate.admit(credentials, None, REMOTE, 0.0)
    with pytest.raises(RequestRefused) as refused:
        gate.admit(credentials, None, REMOTE, 4.0)
    assert refused.value.retry_after_s == pytest.approx(6.0)


def test_what_one_rule_refuses_no_rule_counts() -> None:
    strict, wide = Limit(concurrent=1), Limit(concurrent=9)
    gate = Gate(GateRules(limits=(LimitRule(wide), LimitRule(strict))))
    credentials = made(gate, INFER)
    permit = gate.admit(credentials, None, REMOTE, 0.0)
    assert permit is not None
    assert refusal(gate, credentials, REMOTE) is Reason.CONCURRENCY_LIMITED
    key = ip_address("192.0.2.1").packed
    assert (wide.open_of(key), strict.open_of(key)) == (1, 1)
    permit.release()
    permit.release()
    assert (wide.open_of(key), strict.open_of(key)) == (0, 0)


def test_health_counts_toward_no_limit_while_it_is_open() -> None:
    rules = GateRules(limits=(LimitRule(Limit(rate=1.0)),))
    assert Gate(rules).credentials(HEALTH, [], is_control=False) is None


def test_only_heads_that_tell_of_a_client_have_a_claim_for_the_log_alone() -> None:
    gate = Gate(GateRules(proxies=TrustedProxies((ip_network("10.0.0.0/8"),))))
    fields = [(b"x-forwarded-for", b"192.0.2.1")]
    assert gate.credentials(INFER, (), is_control=False) is None
    assert gate.credentials(HEALTH, fields, is_control=False) is None
    assert refusal(gate, made(gate, INFER, fields), client("10.0.0.1", is_trusted=True)) is None


STRICT = GateRules(strict_shared_memory=True)


def test_without_the_rule_any_client_may_use_memory() -> None:
    gate = Gate()

    assert gate.credentials(INFER, (), is_control=False) is None
    assert gate.may_use_memory(None, REMOTE)


@pytest.mark.parametrize(("who", "may"), [(LOCAL, True), (REMOTE, False)])
def test_strictly_only_who_may_change_servers_may_use_memory(who: Client, may: bool) -> None:
    gate = Gate(STRICT)
    credentials = made(gate, INFER)

    assert refusal(gate, credentials, who) is None, "the inference itself may pass"
    assert gate.may_use_memory(credentials, who) is may
    assert gate.may_use_memory(None, who) is may


@pytest.mark.parametrize(("role", "may"), [(Role.CONTROL, True), (Role.INFER, False)])
def test_a_token_for_control_is_good_for_memory(role: Role, may: bool) -> None:
    gate = Gate(STRICT, book(role))
    credentials = made(gate, INFER, FIELDS)
    refusal(gate, credentials, REMOTE)

    assert gate.may_use_memory(credentials, REMOTE) is may


def test_questions_about_health_use_no_memory() -> None:
    assert Gate(STRICT).credentials(HEALTH, (), is_control=False) is None
