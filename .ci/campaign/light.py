"""A light client beside an attack: checks health, gets a conversation and appends a small event.

It runs in its own process: in one process with clients that decode megabytes, it would measure how
long Python's threads wait for each other. It prints a line for each answer: `h`, `g` or `a` and the
seconds that it took, or `e` and the error. It ends when its standard input closes.
"""

import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

CHECK = "/grpc.health.v1.Health/Check"


class Light:
    """Runs the light client until it is stopped; collects its latencies and errors."""

    def __init__(self, server, pause=0.02):
        self.health, self.get, self.append, self.errors = [], [], [], []
        command = [sys.executable, str(Path(__file__)), server.address, str(pause)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        # Waits for the first answer, because Python starts slowly.
        self.heard(self.process.stdout.readline())
        self.thread = threading.Thread(target=lambda: [self.heard(line) for line in self.process.stdout], daemon=True)
        self.thread.start()

    def heard(self, line):
        what, _, said = line.strip().partition(" ")
        if what == "e":
            self.errors.append(said)
        elif what:
            {"h": self.health, "g": self.get, "a": self.append}[what].append(float(said))

    def stop(self):
        self.process.stdin.close()
        self.thread.join(70)
        self.process.wait(70)
        return self


def run(address, pause):
    import client
    import grpc

    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    db = client.Treering(address, "light")
    check = db.channel.unary_unary(CHECK)
    conversation, number, own = None, 0, uuid.uuid4()

    def timed(what, call):
        began = time.monotonic()
        done = call()
        print(what, time.monotonic() - began, flush=True)
        return done

    while not stopping.is_set():
        try:
            timed("h", lambda: check(b"", timeout=60))
            if conversation is None:
                made = timed("a", lambda: db.append([client.created("light")]))
                conversation = made.events[0].conversation_id
            else:
                got = client.conversation_pb2.GetConversationRequest(conversation_id=conversation)
                timed("g", lambda: db.conversations.Get(got, metadata=db.metadata, timeout=60))
                number += 1
                said, key = [client.message("user", f"light {number}")], f"light {own} {number}"
                timed("a", lambda: db.append(said, conversation, key=key))
        except grpc.RpcError as error:
            details = (error.details() or "")[:120].replace("\n", " ")
            print("e", f"{error.code().name}: {details}", flush=True)
            time.sleep(0.1)
        time.sleep(pause)
    db.close()


def p99(times):
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))] if times else 0.0


def median(times):
    return statistics.median(times) if times else 0.0


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]))
