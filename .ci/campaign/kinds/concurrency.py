"""Many writers on one branch: expected revisions, forks, one key sent by many, ordered subscribers.

Expected: of several appends that expect the same revision, exactly one succeeds; of several
batches with the same key, one is appended, and all get the same positions; a subscriber sees
every event once and in order, over any number of reconnects; forks share exactly the events up to
their revision.
"""

import random
import threading
import time
import uuid

import client
import grpc
from ledger import Ledger, digest, told
from server import Server


def run(world):
    for number in world.rounds(short=2, long=20):
        data = world.folder("store") / "data"
        ledger = Ledger()
        with Server(world, data, env={"TREERING_SEGMENT_BYTES": str(2 << 20)}) as server:
            races(world, server, ledger, 12, 150 if world.long else 40)
            same_key(world, server, ledger, 60 if world.long else 25)
            followed(world, server, ledger, 8 if world.long else 4)
            forks(world, server)
            ledger.check(server.client(), world, "after the races")
            server.stop()
        world.sound(data, "after the races")


def races(world, server, ledger, writers, rounds):
    """Writers that expect the same head: one append succeeds for each revision."""
    conversation = str(uuid.UUID(int=world.rng.getrandbits(128), version=4))
    db = server.client()
    ledger.send(db, ledger.note("race", conversation, "", [client.created("race")]))
    wins, problems = [], []
    head = [1]
    barrier = threading.Barrier(writers)

    def write(n):
        mine = client.Treering(server.address)
        for turn in range(rounds):
            barrier.wait()
            expected = client.events_pb2.ExpectedRevision(revision=head[0])
            # Each entry has its own writer, because only the head decides their order.
            entry = ledger.note(f"{n}-{turn}", conversation, "", [client.message("user", f"race {n} {turn}")])
            error = ledger.send(mine, entry, expected=expected)
            if error is None:
                wins.append((turn, n, entry.places[0][1]))
            elif client.refusal(error)[0] != "REVISION_MISMATCH":
                problems.append(told(error))
            barrier.wait()
            if n == 0:
                head[0] = max((w[2] for w in wins), default=1)
            barrier.wait()
        mine.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    per_turn = [sum(1 for w in wins if w[0] == turn) for turn in range(rounds)]
    world.count("races", rounds)
    world.expect(per_turn == [1] * rounds, f"an expected revision was won {sorted(set(per_turn))} times")
    world.expect(not problems, f"losers of a race are told: {problems[:1]}")


def same_key(world, server, ledger, rounds):
    """Eight clients send one batch under one key at the same moment."""
    clients = [client.Treering(server.address) for _ in range(8)]
    for _ in range(rounds):
        conversation = str(uuid.UUID(int=world.rng.getrandbits(128), version=4))
        events = [client.created("same"), client.message("user", f"same key {conversation}")]
        entry = ledger.note("same", conversation, "", events)
        answers = []

        def send(db):
            try:
                done = db.append(events, conversation, key=entry.key)
                answers.append(([(e.event_id, e.revision, e.position.offset) for e in done.events], done.repeated_key))
            except grpc.RpcError as error:
                answers.append(told(error))

        threads = [threading.Thread(target=send, args=(db,)) for db in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [a for a in answers if isinstance(a, str)]
        world.expect(not errors, f"a key sent by eight at once: {errors[:1]}")
        places = {tuple(a[0]) for a in answers if not isinstance(a, str)}
        world.expect(len(places) == 1, f"a key sent by eight at once is answered with {len(places)} different places")
        first = sum(1 for a in answers if not isinstance(a, str) and not a[1])
        world.expect(first == 1, f"of eight with one key {first} are told that they were first")
        entry.places, entry.state = list(next(iter(places))), "acknowledged"
        error = None
        try:
            clients[0].append([client.message("user", "other content")], conversation, key=entry.key)
        except grpc.RpcError as refused:
            error = refused
        world.expect(error is not None and client.refusal(error)[0] == "IDEMPOTENCY_CONFLICT", f"a key used for other content: {told(error)}")
        world.count("keys sent by eight")
    for db in clients:
        db.close()


def followed(world, server, ledger, readers):
    """Subscribers that reconnect at random, while writers append."""
    stop = threading.Event()
    conversations = [str(uuid.UUID(int=world.rng.getrandbits(128), version=4)) for _ in range(3)]

    def write(n):
        db, rng = client.Treering(server.address), random.Random(n)
        ledger.send(db, ledger.note(f"f{n}", conversations[n], "", [client.created("followed")]))
        for k in range(250):
            ledger.send(db, ledger.note(f"f{n}", conversations[n], "", [client.message("user", f"f {n} {k} " + "x" * rng.randint(0, 2000))]))
        db.close()

    seen = [[] for _ in range(readers)]
    problems = []

    def follow(n):
        rng, after, last_try = random.Random(f"{world.seed} {n}"), 0, False
        while True:
            db = client.Treering(server.address)
            request = client.events_pb2.SubscribeRequest(log=client.events_pb2.LogSource(), after_offset=after)
            last_try = stop.is_set()
            try:
                stream = db.events.Subscribe(request, metadata=db.metadata, timeout=30)
                quota = rng.randint(1, 400)
                for item in stream:
                    if item.HasField("event"):
                        seen[n].append((item.event.position.offset, digest(item.event)))
                        after = item.event.position.offset
                        quota -= 1
                        if (quota <= 0 or stop.is_set()) and not last_try:
                            break
                    elif item.HasField("caught_up") and last_try:
                        return
                stream.cancel()
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
                    problems.append(told(error))
                    return
            finally:
                db.close()
            world.count("reconnects")

    writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    followers = [threading.Thread(target=follow, args=(n,)) for n in range(readers)]
    for thread in writers + followers:
        thread.start()
    for thread in writers:
        thread.join()
    time.sleep(0.2)
    stop.set()
    # One more event wakes subscribers that wait for one.
    db = server.client()
    ledger.send(db, ledger.note("wake", conversations[0], "", [client.message("user", "wake")]))
    for thread in followers:
        thread.join(60)
    world.expect(not problems, f"a follower is told {problems[:1]}")
    wanted = sorted((p[2], d) for e in ledger.acknowledged() for p, d in zip(e.places, e.digests))
    for n, got in enumerate(seen):
        world.count("events followed", len(got))
        # The last event may come after a subscriber has caught up for the last time.
        world.expect(got == wanted[: len(got)] and len(got) >= len(wanted) - 1, f"follower {n} saw {len(got)} events of {len(wanted)}, in order: {got == sorted(got)}")


def forks(world, server):
    """Concurrent forks at every revision: each shares the events before it."""
    db = server.client("forks")
    done = db.append([client.created("forks"), *[client.message("user", f"m{n}") for n in range(20)]])
    conversation = done.events[0].conversation_id
    problems = []

    def fork(at):
        mine = client.Treering(server.address, "forks")
        try:
            mine.fork(conversation, at, f"fork-{at}", "main")
            mine.append([client.message("user", f"on fork {at}")], conversation, f"fork-{at}")
            mine.append([client.message("user", f"main beside {at}")], conversation, "main")
            texts = [client.text_of(e) for e in mine.read(conversation, f"fork-{at}") if e.WhichOneof("body") == "message_appended"]
            if texts != [f"m{n}" for n in range(at - 1)] + [f"on fork {at}"]:
                problems.append(f"fork at {at} reads {texts}")
        except grpc.RpcError as error:
            problems.append(told(error))
        finally:
            mine.close()

    threads = [threading.Thread(target=fork, args=(at,)) for at in range(2, 22)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.count("forks", len(threads))
    world.expect(not problems, f"forks at once: {problems[:1]}")
