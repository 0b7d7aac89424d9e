"""Decoupled: COUNT responses, one every MILLISECONDS, each with the id and its number."""

import os
import pathlib
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []
        self.server = os.environ["TEST_SERVER_NAME"]
        records = pathlib.Path(os.environ["TEST_RECORDS"])
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.ledger = os.open(records / f"executions-{self.server}", how, 0o644)

    def execute(self, requests):
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "ID").as_numpy()[0].decode()
            os.write(self.ledger, f"{name} began {time.monotonic()}\n".encode())
            numbers = [
                int(pb_utils.get_input_tensor_by_name(request, each).as_numpy()[0])
                for each in ("MILLISECONDS", "COUNT")
            ]
            words = (request.get_response_sender(), name, *numbers)
            thread = threading.Thread(target=self.send, args=words)
            thread.start()
            self.threads.append(thread)

    def send(self, sender, name, milliseconds, count):
        for number in range(count):
            time.sleep(milliseconds / 1000)
            if sender.is_cancelled():
                break
            sender.send(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("ECHO", np.array([f"{name}:{number}"], dtype=np.object_)),
                        pb_utils.Tensor("SERVER", np.array([self.server], dtype=np.object_)),
                    ]
                )
            )
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
