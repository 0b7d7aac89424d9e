"""Speech recognition in the shape of Kaldi's: decoupled, sequences of chunks of sound.

Counts the chunks of each sequence. Every chunk is answered once, the last one twice: an interim
result comes before the final one.
"""

import os

import numpy as np
import triton_python_backend_utils as pb_utils

START, END = 1, 2


class TritonPythonModel:
    def initialize(self, args):
        self.chunks = {}
        self.server = np.array([[os.environ["TEST_SERVER_NAME"].encode()]], dtype=np.object_)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                answers = self.answers(request)
            except KeyError:
                error = pb_utils.TritonError("a chunk of a sequence that has not begun")
                answers = [pb_utils.InferenceResponse(error=error)]
            for answer in answers:
                sender.send(answer)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answers(self, request):
        key = request.correlation_id()
        flags = request.flags()
        chunks = 1 if flags & START else self.chunks[key] + 1
        self.chunks[key] = chunks
        if flags & END:
            del self.chunks[key]
        return [self.response(chunks) for _ in range(2 if flags & END else 1)]

    def response(self, chunks):
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("CHUNKS", np.array([[chunks]], dtype=np.int32)),
                pb_utils.Tensor("SERVER", self.server),
            ]
        )
