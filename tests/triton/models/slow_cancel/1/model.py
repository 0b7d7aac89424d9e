"""Takes its time and looks whether its request was cancelled meanwhile.

Writes one file per request, named by the request's id, into the directory of the test run:
`started`, then `cancelled` or `finished`.
"""

import os
import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.records = pathlib.Path(os.environ["TEST_RECORDS"])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        record = self.records / request.request_id()
        milliseconds = pb_utils.get_input_tensor_by_name(request, "MILLISECONDS")
        end = time.monotonic() + int(milliseconds.as_numpy()[0]) / 1000
        record.write_text("started")
        while time.monotonic() < end:
            if request.is_cancelled():
                record.write_text("cancelled")
                return pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                )
            time.sleep(0.01)
        record.write_text("finished")
        return pb_utils.InferenceResponse([pb_utils.Tensor("DONE", milliseconds.as_numpy())])
