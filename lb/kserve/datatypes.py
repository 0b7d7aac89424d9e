"""KServe's data types of tensors, and how each form of a request holds their elements.

Sources: Triton's `model_configuration.md` (Datatypes) and `extension_binary_data.md`;
`grpc_service.proto` (`InferTensorContents`).
"""

from __future__ import annotations

from typing import Final

BYTES: Final = "BYTES"
SIZES: Final = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2,
    "INT32": 4, "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
"""Bytes of an element; one of BYTES says its own length."""
FORMATS: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
    "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
"""The letter that `struct` has for it; BF16 and BYTES have none."""
TYPED_CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", BYTES: "bytes_contents",
}  # fmt: skip
"""The field of `InferTensorContents`; FP16 and BF16 have none."""
