"""Fails every request: `raise` in WHY raises, anything else is the text of an error response."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        why = pb_utils.get_input_tensor_by_name(request, "WHY").as_numpy()[0].decode()
        if why == "raise":
            raise ValueError("the model raised")
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(why))
