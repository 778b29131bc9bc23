"""Generates the Python code of Envoy's rate-limit protocol.

Usage: rls schema protocol > rls.binpb && generate.py rls.binpb FOLDER
"""

import sys

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc


def main(path, folder):
    with open(path, "rb") as file:
        names = [f.name for f in FileDescriptorSet.FromString(file.read()).file]
    # The package protobuf has the files of google/protobuf already.
    names = [name for name in names if not name.startswith("google/protobuf/")]
    options = [f"--descriptor_set_in={path}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    return protoc.main(["protoc", *options, *names])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
