"""No request to a front becomes two, or another one than it was judged to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.kserve.fronts import Forward, FrontFault, FrontRequest, v2_head
from lb.kserve.sagemaker import MIME as SAGEMAKER_MIME
from lb.kserve.sagemaker import Invoke, SageMakerRoutes
from lb.kserve.sagemaker import translate as of_sagemaker
from lb.kserve.vertex import MIME as VERTEX_MIME
from lb.kserve.vertex import VertexRoutes
from lb.kserve.vertex import translate as of_vertex
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.request import parse_request_head

LIMITS = HeadLimits()
VALUES = st.text(st.sampled_from("v2/models.infer ?#%\\;=-0123456789:aé\t"), max_size=40).map(
    lambda text: text.strip().encode("latin-1")
)
SEGMENTS = st.sampled_from(
    b"v2,models,m,infer,repository,load,..,a b,m?x,%2e,x HTTP/1.1".split(b",")
)
PATHS = VALUES | st.lists(SEGMENTS, max_size=6).map(b"/".join)
NUMBERS = st.integers(-5, 200).map(lambda number: b"%d" % number) | VALUES


def head_of(method: bytes, target: bytes, *fields: tuple[bytes, bytes]) -> bytes:
    lines = (b"%b: %b" % field for field in fields)
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, target), *lines, b"", b""))


def check(head: bytes, forward: Forward) -> None:
    """The head for the backend says what was decided, or is refused."""
    try:
        request = parse_request_head(v2_head(head, forward), LIMITS)
    except MessageError:
        return
    assert (request.method, request.target) == (forward.method, forward.target)
    assert request.json_length == forward.json_length
    assert request.length == 50
    assert request.host == b"a"


@given(PATHS, NUMBERS)
def test_a_redirection_is_one_v2_request(redirect: bytes, number: bytes) -> None:
    mime = VERTEX_MIME + number
    head = head_of(
        b"POST",
        b"/p",
        (b"Host", b"a"),
        (b"Content-Type", mime),
        (b"X-Vertex-Ai-Triton-Redirect", redirect),
        (b"Content-Length", b"50"),
    )
    request = FrontRequest(b"POST", b"/p", 50, mime, redirect=redirect)
    try:
        meaning = of_vertex(VertexRoutes(health=b"/h", predict=b"/p"), request, b"m")
    except FrontFault:
        return
    if isinstance(meaning, Forward):
        assert meaning.target == b"/" + redirect
        check(head, meaning)


@given(PATHS, NUMBERS)
def test_an_invocation_is_of_the_model_that_is_named(model: bytes, number: bytes) -> None:
    mime = SAGEMAKER_MIME + number
    head = head_of(
        b"POST",
        b"/models/H/invoke",
        (b"Host", b"a"),
        (b"Content-Type", mime),
        (b"X-Amzn-SageMaker-Target-Model", model),
        (b"Content-Length", b"50"),
    )
    request = FrontRequest(b"POST", b"/models/H/invoke", 50, mime, model=model)
    try:
        meaning = of_sagemaker(SageMakerRoutes(is_multi_model=True), request)
    except FrontFault:
        return
    if isinstance(meaning, Invoke):
        assert meaning.forward.target.count(b"/") == 4
        assert not set(meaning.forward.target) & set(b"?#% \\")
        check(head, meaning.forward)
