"""A light client beside an attack: asks for health and appends a small event, again and again."""

import statistics
import threading
import time
import uuid

import client
import grpc

CHECK = "/grpc.health.v1.Health/Check"


class Light:
    """Runs until it is stopped; knows how long answers took and what went wrong."""

    def __init__(self, server, pause=0.02):
        self.server, self.pause = server, pause
        self.stopping = threading.Event()
        self.health, self.append, self.errors = [], [], []
        self.began = time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        db = client.Treering(self.server.address, "light")
        check = db.channel.unary_unary(CHECK)
        conversation, number, own = None, 0, uuid.uuid4()
        while not self.stopping.is_set():
            try:
                began = time.monotonic()
                check(b"", timeout=60)
                self.health.append(time.monotonic() - began)
                began = time.monotonic()
                if conversation is None:
                    conversation = db.append([client.created("light")]).events[0].conversation_id
                else:
                    number += 1
                    db.append([client.message("user", f"light {number}")], conversation, key=f"light {own} {number}")
                self.append.append(time.monotonic() - began)
            except grpc.RpcError as error:
                self.errors.append(f"{error.code().name}: {(error.details() or '')[:120]}")
                time.sleep(0.1)
            time.sleep(self.pause)
        db.close()

    def stop(self):
        self.stopping.set()
        self.thread.join(70)
        return self


def p99(times):
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))] if times else 0.0


def median(times):
    return statistics.median(times) if times else 0.0
