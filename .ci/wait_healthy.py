"""Waits until a server is healthy. Usage: wait_healthy.py ADDRESS

Calls the standard health service. Its messages are encoded by hand: an empty request,
and one enum in the answer.
"""

import sys
import time

import grpc

SERVING = b"\x08\x01"  # HealthCheckResponse { status: SERVING }

with grpc.insecure_channel(sys.argv[1]) as channel:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    seen = None
    for _ in range(100):
        try:
            seen = check(b"", timeout=5, wait_for_ready=True)
            if seen == SERVING:
                sys.exit(0)
        except grpc.RpcError as error:
            seen = error.code().name
        time.sleep(0.1)
sys.exit(f"not serving: {seen}")
