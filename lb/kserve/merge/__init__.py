"""One answer out of the answers of several servers, in JSON and in protobuf."""
