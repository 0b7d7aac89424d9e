"""Runs in Triton: stands for a GPU, and sleeps as long as that would compute.

The file `slow-SERVER` in the directory of the run holds a factor of that time, while there is one.
"""

import json
import os
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        said = json.loads(args["model_config"])["parameters"]
        self.base_s = float(said["base_ms"]["string_value"]) / 1000
        self.row_s = float(said["row_ms"]["string_value"]) / 1000
        records = pathlib.Path(os.environ["TEST_RECORDS"])
        self.slow = records / f"slow-{os.environ['TEST_SERVER_NAME']}"

    def execute(self, requests):
        begun = time.perf_counter()
        inputs = [pb_utils.get_input_tensor_by_name(each, "INPUT0") for each in requests]
        rows = [each.shape()[0] for each in inputs]
        factor = float(self.slow.read_text()) if self.slow.exists() else 1.0
        end = begun + (self.base_s + self.row_s * sum(rows)) * factor
        time.sleep(max(0.0, end - time.perf_counter()))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros((n, 1), np.float32))])
            for n in rows
        ]
