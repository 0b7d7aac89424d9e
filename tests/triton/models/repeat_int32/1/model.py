"""Decoupled: one response per element of IN, each after its DELAY in milliseconds.

SENT_AT is the monotonic clock of this machine in seconds, so that a client on the same machine
can tell whether it saw a response before the next one was made. A request with an id leaves a
file of that name in the directory of the test run: `started`, then `cancelled` or `finished`.
"""

import os
import pathlib
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.records = pathlib.Path(os.environ["TEST_RECORDS"])
        self.threads = []

    def execute(self, requests):
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        for request in requests:
            thread = threading.Thread(target=self.send, args=self.parts(request))
            thread.start()
            self.threads.append(thread)

    def parts(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()
        return request.get_response_sender(), request.request_id(), values, delays

    def send(self, sender, name, values, delays):
        self.record(name, "started")
        for index, (value, delay) in enumerate(zip(values, delays, strict=True)):
            time.sleep(int(delay) / 1000)
            if sender.is_cancelled():
                self.record(name, "cancelled")
                break
            sender.send(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("OUT", np.array([value], dtype=np.int32)),
                        pb_utils.Tensor("IDX", np.array([index], dtype=np.uint32)),
                        pb_utils.Tensor("SENT_AT", np.array([time.monotonic()])),
                    ]
                )
            )
        else:
            self.record(name, "finished")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def record(self, name, what):
        if name:
            (self.records / name).write_text(what)

    def finalize(self):
        for thread in self.threads:
            thread.join()
