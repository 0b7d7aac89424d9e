"""Gives its input back, the first of a sequence one larger."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()
        output = value + start.reshape(value.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", output)])
