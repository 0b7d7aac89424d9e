"""Turn lb/kserve/inference.proto into the Python messages beside it.

Run `python tools/make_messages.py` after a change of the .proto file. It needs `grpcio-tools`,
which nothing else does. protoc's own output registers its names in protobuf's default descriptor
pool, where `tritonclient` registers the same names: whichever came second would not import. So
this writes a module that builds the messages in a pool of its own, which also frees it from
protoc's rule that the runtime be at least as new as the generator.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

PROTO = Path(__file__).resolve().parent.parent / "lb" / "kserve" / "inference.proto"
BYTES_PER_LINE = 64

TEMPLATE = '''\
"""Messages of the KServe v2 gRPC protocol. Written by tools/make_messages.py: do not edit.

They live in a descriptor pool of their own, because `tritonclient` registers messages of the same
names in protobuf's default pool. On the wire the two are the same; as Python classes they differ.
"""

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

SOURCE_SHA256 = "{digest}"

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(
{serialized}
)
DESCRIPTOR = _pool.FindFileByName("{file}")


def _message(descriptor):
    made = message_factory.GetMessageClass(descriptor)
    for nested in descriptor.nested_types:
        if not hasattr(made, nested.name):  # only protobuf without its C extension leaves them out
            setattr(made, nested.name, _message(nested))
    return made


_messages = DESCRIPTOR.message_types_by_name
_enums = DESCRIPTOR.enum_types_by_name

{definitions}
'''


def compile_proto(out: Path) -> tuple[FileDescriptorProto, str]:
    """Return the descriptor of the .proto file and its typing stub."""
    descriptor_set = out / "descriptors"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={PROTO.parent}",
            f"--descriptor_set_out={descriptor_set}",
            f"--pyi_out={out}",
            PROTO.name,
        ],
        check=True,
    )
    (descriptor,) = FileDescriptorSet.FromString(descriptor_set.read_bytes()).file
    # The stub's bare `_Mapping` does not pass mypy --strict.
    stub = (out / f"{PROTO.stem}_pb2.pyi").read_text()
    return descriptor, stub.replace(", _Mapping]", ", _Mapping[str, object]]")


def module_text(descriptor: FileDescriptorProto, digest: str) -> str:
    """Return the source of the module that holds the messages."""
    data = descriptor.SerializeToString(deterministic=True)
    lines = [data[at : at + BYTES_PER_LINE] for at in range(0, len(data), BYTES_PER_LINE)]
    definitions = [
        f'{message.name} = _message(_messages["{message.name}"])'
        for message in descriptor.message_type
    ]
    for enum in descriptor.enum_type:
        definitions.append(
            f'{enum.name} = enum_type_wrapper.EnumTypeWrapper(_enums["{enum.name}"])'
        )
        definitions += [f"{value.name} = {value.number}" for value in enum.value]
    return TEMPLATE.format(
        digest=digest,
        serialized="\n".join(f"    {line!r}" for line in lines),
        file=descriptor.name,
        definitions="\n".join(definitions),
    )


def main() -> None:
    """Write inference_pb2.py and inference_pb2.pyi."""
    digest = hashlib.sha256(PROTO.read_bytes()).hexdigest()
    with tempfile.TemporaryDirectory() as out:
        descriptor, stub = compile_proto(Path(out))
    target = PROTO.with_name(f"{PROTO.stem}_pb2.py")
    target.write_text(module_text(descriptor, digest))
    target.with_suffix(".pyi").write_text(f"SOURCE_SHA256: str\n{stub}")


if __name__ == "__main__":
    main()
