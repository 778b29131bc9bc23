"""Acquires permits from rls and prints when each permit came.

Usage: acquire.py ADDRESS DOMAIN KEY=VALUE[,KEY=VALUE...] PERMITS
"""

import random
import sys
import time

import grpc

from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

OVER_LIMIT = rls_pb2.RateLimitResponse.OVER_LIMIT


class CanNeverPass(Exception):
    """The weight of the request exceeds the limit."""


def new_request(domain, descriptor, permits=1):
    """Returns a request for one descriptor, such as "tenant=acme,path=/orders"."""
    entry = ratelimit_pb2.RateLimitDescriptor.Entry
    entries = [entry(key=key, value=value) for key, value in (part.split("=", 1) for part in descriptor.split(","))]
    return rls_pb2.RateLimitRequest(
        domain=domain,
        descriptors=[ratelimit_pb2.RateLimitDescriptor(entries=entries)],
        hits_addend=permits,
    )


def acquire(stub, request, timeout=60.0):
    """Waits until the permits of the request come, for at most timeout seconds."""
    deadline = time.monotonic() + timeout
    while True:
        response, call = stub.ShouldRateLimit.with_call(request, timeout=5, metadata=[("rls-acquire", "true")])
        if response.overall_code != OVER_LIMIT:
            return
        # The header is in the initial metadata of the answer.
        wait = dict(call.initial_metadata())["rls-retry-after"]
        if wait == "never":
            raise CanNeverPass(f"{request.hits_addend} permits can never pass")
        seconds = float(wait)
        seconds += random.uniform(0, 0.001 + seconds / 20)  # others wait for the same reset
        if time.monotonic() + seconds > deadline:
            raise TimeoutError(f"permits come in {seconds:.3f} s at the earliest")
        time.sleep(seconds)


def main(address, domain, descriptor, permits):
    with grpc.insecure_channel(address) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        request = new_request(domain, descriptor)
        start = time.monotonic()
        for number in range(1, int(permits) + 1):
            acquire(stub, request)
            print(f"permit {number} after {time.monotonic() - start:.3f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
