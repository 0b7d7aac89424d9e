"""Adds up the numbers of each sequence, notes every step, and echoes its id with the sum."""

import os
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

START, END = 1, 2


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        self.server = os.environ["TEST_SERVER_NAME"]
        records = pathlib.Path(os.environ["TEST_RECORDS"])
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.ledger = os.open(records / f"executions-{self.server}", how, 0o644)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "ID").as_numpy().item().decode()
        os.write(self.ledger, f"{name} began {time.monotonic()}\n".encode())
        key, flags = request.correlation_id(), request.flags()
        value = int(pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy().item())
        total = value if flags & START else self.sums[key] + value
        if flags & END:
            self.sums.pop(key, None)
        else:
            self.sums[key] = total
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("ECHO", np.array([[f"{name}:{total}"]], dtype=np.object_)),
                pb_utils.Tensor("SERVER", np.array([[self.server]], dtype=np.object_)),
            ]
        )
