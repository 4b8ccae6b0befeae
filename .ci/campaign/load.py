"""Writers that append with idempotency keys, record the answers, and retry open batches."""

import random
import threading
import time
import uuid

import client
import grpc
from ledger import ACKNOWLEDGED, OPEN, told

# Ranges of text sizes in bytes, each with the probability of its or a smaller range: mostly small,
# some that fill a frame, some stored as large bodies.
SIZES = [(0.70, 20, 600), (0.92, 600, 6_000), (0.98, 20_000, 60_000), (1.0, 66_000, 300_000)]


def text_of_size(rng, size):
    """Text that compresses badly, so that its size on disk is near `size`."""
    return rng.randbytes(size // 2 + 1).hex()[:size]


class Load:
    """Runs writers against a server until it is stopped or the server ends."""

    def __init__(self, server, ledger, seed, writers=6, sizes=SIZES, pace=0.0, retry=True):
        self.server, self.ledger, self.sizes, self.pace = server, ledger, sizes, pace
        self.retry, self.stopping, self.errors = retry, threading.Event(), {}
        self.answers = 0
        self.threads = [
            threading.Thread(target=self.write, args=(f"{seed}-{n}",), daemon=True) for n in range(writers)
        ]
        for thread in self.threads:
            thread.start()

    def write(self, name):
        rng = random.Random(name)
        db = client.Treering(self.server.address, self.ledger.namespace)
        conversation, number = None, 0
        try:
            while not self.stopping.is_set():
                if conversation is None or rng.random() < 0.03:
                    conversation = str(uuid.UUID(int=rng.getrandbits(128), version=4))
                    events = [client.created(f"{name} {number}")]
                else:
                    events = self.events(rng, name, number)
                number += 1
                entry = self.ledger.note(name, conversation, "", events)
                if not self.until_answered(db, entry, rng):
                    return
                if entry.state != ACKNOWLEDGED:
                    conversation = None
                if self.pace:
                    time.sleep(rng.random() * self.pace)
        finally:
            db.close()

    def events(self, rng, name, number):
        drawn = rng.random()
        low, high = next((low, high) for share, low, high in self.sizes if drawn <= share)
        count = rng.choice([1, 1, 1, 2, 5])
        events = []
        for n in range(count):
            text = f"{name} {number}.{n} " + text_of_size(rng, rng.randint(low, high) // count + 1)
            if rng.random() < 0.2:
                call = f"c{number}.{n}"
                events += [client.tool_call(call, "read", {"n": f"{name} {number}.{n}"}), client.tool_result(call, text)]
            else:
                events.append(client.message(rng.choice(["user", "assistant"]), text))
        return events

    def until_answered(self, db, entry, rng):
        """Retries a batch until it is answered. False if the load ends before."""
        while True:
            error = self.ledger.send(db, entry)
            if error is None:
                self.answers += 1
                return True
            what = told(error)[:160]
            self.errors[what] = self.errors.get(what, 0) + 1
            if entry.state != OPEN:
                return True
            if self.stopping.is_set() or not self.retry or not self.server.alive():
                return False
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                time.sleep(0.02 + rng.random() * 0.05)
            else:
                time.sleep(0.01)
            self.ledger.retried += 1

    def wait_for(self, answers, seconds=30):
        """Waits until so many batches were answered. False on a timeout or if all writers ended."""
        until = time.monotonic() + seconds
        while self.answers < answers:
            if time.monotonic() > until or not any(t.is_alive() for t in self.threads):
                return False
            time.sleep(0.005)
        return True

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)


def fill(world, server, ledger, conversations=4, batches=8, large=1, seed="fill", namespace="default", most=130_000):
    """Fills a small store with messages, calls and large bodies, but no forks."""
    db = server.client(namespace)
    rng = random.Random(f"{world.seed}:{seed}")
    for c in range(conversations):
        conversation = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        sizes = [rng.randint(30, 3000) for _ in range(batches)]
        for n in range(large):
            sizes[rng.randrange(len(sizes))] = rng.randint(70_000, most)
        made = [[client.created(f"{seed} {c}")]]
        for n, size in enumerate(sizes):
            text = f"{seed} {c}.{n} needle{c}x{n} " + text_of_size(rng, size)
            if n % 3 == 2:
                made.append([client.tool_call(f"c{n}", "read", {"at": f"{seed} {c}.{n}"}), client.tool_result(f"c{n}", text)])
            else:
                made.append([client.message("user" if n % 2 else "assistant", text)])
        for events in made:
            entry = ledger.note("fill", conversation, "", events)
            error = ledger.send(db, entry)
            if error is not None:
                raise RuntimeError(f"a healthy server refused: {told(error)}")
    return ledger
