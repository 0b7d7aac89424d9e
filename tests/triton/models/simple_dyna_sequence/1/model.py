"""Gives its input back: the first of a sequence one larger, the last larger by the sequence's id.

An id that is a string counts as its length.
"""

import triton_python_backend_utils as pb_utils

START, END = 1, 2


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name = request.correlation_id()
        flags = request.flags()
        output = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        if flags & START:
            output = output + 1
        if flags & END:
            output = output + (len(name) if isinstance(name, str) else name)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", output.astype("int32"))])
