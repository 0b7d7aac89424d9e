"""One batch as several: requests are cut by rows, and the answers to the parts are joined.

A row is one entry of dimension 0, the batch dimension (Triton's model configuration,
`max_batch_size`).
"""
