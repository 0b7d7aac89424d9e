"""Stands for a GPU that keeps a ledger: sleeps, notes each execution, echoes id and checksum.

Files in the directory of the run make it misbehave: `poison-SERVER` holds a code of Triton with
which every request fails at once, `slow-SERVER` a factor of the time that a request takes. An id
that begins with `death` kills the server.
"""

import os
import pathlib
import signal
import time
import zlib

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        records = pathlib.Path(os.environ["TEST_RECORDS"])
        self.server = os.environ["TEST_SERVER_NAME"]
        self.poison = records / f"poison-{self.server}"
        self.slow = records / f"slow-{self.server}"
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.ledger = os.open(records / f"executions-{self.server}", how, 0o644)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "ID").as_numpy()[0].decode()
        code = self.read(self.poison)
        self.note(name, "failed" if code else "began")
        if name.startswith("death"):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60.0)
        if code:
            text = "CUDA error: an illegal memory access was encountered"
            error = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
            return pb_utils.InferenceResponse(error=error)
        milliseconds = pb_utils.get_input_tensor_by_name(request, "MILLISECONDS").as_numpy()
        time.sleep(int(milliseconds[0]) / 1000 * float(self.read(self.slow) or 1))
        payload = pb_utils.get_input_tensor_by_name(request, "PAYLOAD").as_numpy()
        echo = f"{name}:{zlib.crc32(payload)}"
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("ECHO", np.array([echo], dtype=np.object_)),
                pb_utils.Tensor("SERVER", np.array([self.server], dtype=np.object_)),
            ]
        )

    def note(self, name, what):
        os.write(self.ledger, f"{name} {what} {time.monotonic()}\n".encode())

    @staticmethod
    def read(path):
        try:
            return path.read_text()
        except FileNotFoundError:
            return ""
