"""Echoes. Triton loses requests of zero rows: they never come here, and are never answered."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("ECHO", text)])
