"""gRPC server reflection: which services and messages there are, for clients such as grpcurl.

Source: `grpc.reflection.v1.ServerReflection`, which `v1alpha` equals on the wire. Each question of
a stream is answered by itself. Extensions are answered with NOT_FOUND: our messages have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

from lb.kserve import inference_pb2
from lb.wire.grpc.status import GrpcStatus
from lb.wire.protobuf import BYTES, fields, write_bytes

_HOST, _FILE, _SYMBOL, _EXTENSION, _EXTENSIONS, _LIST = 1, 3, 4, 5, 6, 7
"""Fields of a `ServerReflectionRequest`; all but the first are one of a kind."""
_FILES_FOUND, _SERVICES, _ERROR = 4, 6, 7
"""Fields of a `ServerReflectionResponse`."""
_ORIGINAL: Final = 2


class Descriptors:
    """The files of our services, and what they define."""

    __slots__ = ("files", "services", "symbols")

    def __init__(self, files: Iterable[bytes]) -> None:
        """Read serialized `FileDescriptorProto`s."""
        self.files: dict[str, bytes] = {}
        """By name of the file."""
        self.symbols: dict[str, bytes] = {}
        """Likewise, by full name of what it defines."""
        self.services: list[str] = []
        """Full names."""
        for text in files:
            file = FileDescriptorProto.FromString(text)
            self.files[file.name] = text
            self.services += [f"{file.package}.{service.name}" for service in file.service]
            self.symbols.update(dict.fromkeys(_symbols(file), text))


def _symbols(file: FileDescriptorProto) -> Iterator[str]:
    """Full names of all that a file defines."""
    for service in file.service:
        name = f"{file.package}.{service.name}"
        yield name
        yield from (f"{name}.{method.name}" for method in service.method)
    for message in file.message_type:
        yield from _of_message(message, file.package)
    for enum in file.enum_type:
        yield from _of_enum(enum, file.package)


def _of_message(message: DescriptorProto, scope: str) -> Iterator[str]:
    name = f"{scope}.{message.name}"
    yield name
    yield from (f"{name}.{field.name}" for field in message.field)
    yield from (f"{name}.{choice.name}" for choice in message.oneof_decl)
    for nested in message.nested_type:
        yield from _of_message(nested, name)
    for enum in message.enum_type:
        yield from _of_enum(enum, name)


def _of_enum(enum: EnumDescriptorProto, scope: str) -> Iterator[str]:
    yield f"{scope}.{enum.name}"
    yield from (f"{scope}.{value.name}" for value in enum.value)  # siblings of their enum


@cache
def descriptors() -> Descriptors:
    """Those of the services that are the same on every Triton. The files have no dependencies."""
    return Descriptors((inference_pb2.DESCRIPTOR.serialized_pb, _health_file()))


def _health_file() -> bytes:
    """The `FileDescriptorProto` of `grpc.health.v1`.

    Source: https://github.com/grpc/grpc-proto/blob/master/grpc/health/v1/health.proto. It is not
    taken from grpcio-health-checking: clients that bring an older protobuf cannot load that.
    """
    package = "grpc.health.v1"
    answer = f".{package}.HealthCheckResponse"
    status = f"{answer}.ServingStatus"
    statuses = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
    optional, kind = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto
    file = FileDescriptorProto(
        name="grpc/health/v1/health.proto",
        package=package,
        syntax="proto3",
        message_type=[
            DescriptorProto(
                name="HealthCheckRequest",
                field=[
                    FieldDescriptorProto(
                        name="service", number=1, label=optional, type=kind.TYPE_STRING
                    )
                ],
            ),
            DescriptorProto(
                name="HealthCheckResponse",
                field=[
                    FieldDescriptorProto(
                        name="status",
                        number=1,
                        label=optional,
                        type=kind.TYPE_ENUM,
                        type_name=status,
                    )
                ],
                enum_type=[
                    EnumDescriptorProto(
                        name="ServingStatus",
                        value=[
                            EnumValueDescriptorProto(name=name, number=number)
                            for number, name in enumerate(statuses)
                        ],
                    )
                ],
            ),
        ],
        service=[
            ServiceDescriptorProto(
                name="Health",
                method=[
                    MethodDescriptorProto(
                        name=name,
                        input_type=f".{package}.HealthCheckRequest",
                        output_type=answer,
                        server_streaming=is_watch,
                    )
                    for name, is_watch in (("Check", False), ("Watch", True))
                ],
            )
        ],
    )
    return file.SerializeToString()


def answer(question: bytes) -> bytes:
    """A `ServerReflectionResponse` to a `ServerReflectionRequest`.

    Raises:
        ProtobufError: the question is malformed.
    """
    kind, text, host = 0, "", b""
    for number, wire_type, start, end in fields(question):
        if wire_type == BYTES:
            if number == _HOST:
                host = question[start:end]
            elif _FILE <= number <= _LIST:
                kind, text = number, question[start:end].decode(errors="replace")
    return write_bytes(_HOST, host) + write_bytes(_ORIGINAL, question) + _found(kind, text)


def _found(kind: int, text: str) -> bytes:
    known = descriptors()
    if kind == _LIST:
        services = (write_bytes(1, name.encode()) for name in known.services)
        return write_bytes(_SERVICES, b"".join(write_bytes(1, service) for service in services))
    file = None
    if kind == _FILE:
        file = known.files.get(text)
    elif kind == _SYMBOL:
        file = known.symbols.get(text)
    if file is not None:
        return write_bytes(_FILES_FOUND, write_bytes(1, file))
    if kind:
        return _error(GrpcStatus.NOT_FOUND, "nothing of that name is known")
    return _error(GrpcStatus.INVALID_ARGUMENT, "the request asks for nothing")


def _error(status: GrpcStatus, text: str) -> bytes:
    return write_bytes(_ERROR, b"\x08%c" % status + write_bytes(2, text.encode()))
