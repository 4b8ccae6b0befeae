"""A minimal HTTP/2 client, for frames that no client library would send.

Supports what the attacks need: literal headers without Huffman coding, data within the
peer's windows, resets, and how a stream ended.
"""

import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header field without indexing."""
    return b"\x00" + length(name) + name + length(value) + value


def length(text):
    n = len(text)
    if n < 127:
        return bytes([n])
    n -= 127
    out = b"\x7f"
    while n >= 128:
        out += bytes([n % 128 + 128])
        n //= 128
    return out + bytes([n])


def message(payload, compressed=False):
    """A message in gRPC's framing."""
    return bytes([compressed]) + struct.pack(">I", len(payload)) + payload


class Closed(Exception):
    """The peer ended the connection."""


class Connection:
    """A connection that sends arbitrary frames."""

    def __init__(self, address, seconds=20, preface=True):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=seconds)
        self.buffer, self.next, self.window, self.initial, self.most = b"", 1, 65535, 65535, 16384
        self.windows, self.ended, self.answers, self.goaway = {}, {}, {}, None
        if preface:
            # Opens the largest window for answers.
            settings = struct.pack(">HI", 4, (1 << 31) - 1)
            self.send(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW, 0, 0, struct.pack(">I", (1 << 31) - 65536)))

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from error

    def open(self, path, encoding="", end=False, more=()):
        """Opens a stream with its headers."""
        stream, self.next = self.next, self.next + 2
        fields = [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"campaign"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers"),
        ]  # fmt: skip
        if encoding:
            fields.append((b"grpc-encoding", encoding.encode()))
        fields += list(more)
        block = b"".join(literal(*field) for field in fields)
        self.windows[stream] = self.initial
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block))
        return stream

    def data(self, stream, payload, end=False, seconds=30):
        """Sends data within the peer's windows. False if that does not end in time."""
        at, until = 0, time.monotonic() + seconds
        while at < len(payload):
            if stream in self.ended:
                return False
            room = min(self.window, self.windows[stream], self.most, len(payload) - at)
            if room <= 0:
                if time.monotonic() > until or not self.pump(until - time.monotonic()):
                    return False
                continue
            last = end and at + room == len(payload)
            self.send(frame(DATA, END_STREAM if last else 0, stream, payload[at : at + room]))
            at += room
            self.window -= room
            self.windows[stream] -= room
            self.pump(0)
        return True

    def reset(self, stream, code=8):
        self.send(frame(RESET, 0, stream, struct.pack(">I", code)))

    def pump(self, seconds):
        """Handles frames that arrive. False if none arrives in time."""
        self.socket.settimeout(max(seconds, 0.0001))
        try:
            got = self.socket.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            raise Closed(str(error)) from error
        finally:
            self.socket.settimeout(20)
        if not got:
            raise Closed("end")
        self.buffer += got
        while len(self.buffer) >= 9:
            n = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + n:
                break
            kind, flags = self.buffer[3], self.buffer[4]
            stream = int.from_bytes(self.buffer[5:9], "big") & 0x7FFFFFFF
            payload, self.buffer = self.buffer[9 : 9 + n], self.buffer[9 + n :]
            self.take(kind, flags, stream, payload)
        return True

    def take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                key, value = struct.unpack_from(">HI", payload, at)
                if key == 4:
                    for one in self.windows:
                        self.windows[one] += value - self.initial
                    self.initial = value
                elif key == 5:
                    self.most = value
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW:
            more = int.from_bytes(payload, "big") & 0x7FFFFFFF
            if stream == 0:
                self.window += more
            elif stream in self.windows:
                self.windows[stream] += more
        elif kind == GOAWAY:
            self.goaway = payload[8:].decode("utf-8", "replace") or str(int.from_bytes(payload[4:8], "big"))
        elif kind == RESET:
            self.ended[stream] = f"reset {int.from_bytes(payload, 'big')}"
        elif kind in (HEADERS, DATA):
            self.answers[stream] = self.answers.get(stream, b"") + payload
            if flags & END_STREAM:
                self.ended.setdefault(stream, "answered")

    def wait(self, stream, seconds=60):
        """How the stream ended, or None."""
        until = time.monotonic() + seconds
        while stream not in self.ended and time.monotonic() < until:
            self.pump(min(1.0, until - time.monotonic()))
        return self.ended.get(stream)

    def close(self):
        self.socket.close()
