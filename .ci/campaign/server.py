"""Runs a server of the binary under attack, in its own process."""

import itertools
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import client
import grpc
from world import Broken

# Timeouts that detect a hanging server.
START_SECONDS = 60
STOP_SECONDS = 60

SERVING = b"\x08\x01"


class Refused(Exception):
    """The server ended instead of listening."""

    def __init__(self, code, said):
        super().__init__(f"`treering serve` exited with {code}: {said.strip()[-400:]}")
        self.code, self.said = code, said


class Server:
    """`treering serve` on a folder. `shim` injects faults between it and its disk."""

    numbers = itertools.count(1)

    def __init__(self, world, data, shim=None, env=None, limits=""):
        self.world, self.data = world, Path(data)
        self.log_path = world.work / f"server-{next(Server.numbers)}.log"
        words = [world.binary, "serve", "--data", os.fspath(data), "--listen", "127.0.0.1:0"]
        words += ["--color", "never"]
        if limits:
            words = ["bash", "-c", f'{limits}; exec "$@"', "bash", *words]
        seen = shim.log_opens() if shim else 0
        env = {**os.environ, **(shim.environment() if shim else {}), **(env or {})}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
            )
        self.channels = []
        # The output may have more lines: a folder's name can contain a newline.
        self.address = self.wait_for_address()
        if shim and shim.log_opens() == seen:
            self.kill()
            raise Broken(
                "the shim has seen no open of the log's files: no fault reaches them."
                " The server calls the system without libc, or by a name that `shim.c` does not have"
            )

    def wait_for_address(self):
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            found = re.search(r"^Serving .*? at http://([0-9.:]+)$", self.log(), re.MULTILINE | re.DOTALL)
            if found:
                return found[1]
            if self.process.poll() is not None:
                self.complain()
                raise Refused(self.process.returncode, self.log())
            time.sleep(0.01)
        self.kill()
        raise Refused(-1, f"no address within {START_SECONDS} s: {self.log()}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def client(self, namespace="default"):
        one = client.Treering(self.address, namespace)
        self.channels.append(one)
        return one

    def healthy(self, service=b"", seconds=5):
        """The health service's answer, or the status code of the error."""
        with grpc.insecure_channel(self.address) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            request = b"" if not service else bytes([0x0A, len(service)]) + service
            try:
                answer = check(request, timeout=seconds, wait_for_ready=True)
                return "SERVING" if answer == SERVING else f"status {answer.hex()}"
            except grpc.RpcError as error:
                return error.code().name

    def alive(self):
        return self.process.poll() is None

    def close_channels(self):
        for one in self.channels:
            one.close()
        self.channels = []

    def complain(self):
        """Reports a panic of the server: it must never panic."""
        said = self.log()
        if "panicked at" in said:
            line = next(x for x in said.splitlines() if "panicked at" in x)
            self.world.found(f"the server panicked: {line.strip()[:300]}")

    def kill(self):
        """Kills the process with SIGKILL."""
        if self.alive():
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.close_channels()
        self.complain()

    def stop(self):
        """Sends SIGTERM; the server must exit with 0. Returns seconds, or None if it hangs."""
        self.close_channels()
        began = time.monotonic()
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.world.found(f"the server did not end within {STOP_SECONDS} s of SIGTERM")
            self.kill()
            return None
        self.complain()
        self.world.expect(code == 0, f"the server exited with {code} after SIGTERM: {self.log()[-300:]}")
        return time.monotonic() - began

    def rss(self):
        """Resident memory in bytes: current and peak."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        value = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", text, re.M))
        return int(value.get("VmRSS", 0)) << 10, int(value.get("VmHWM", 0)) << 10

    def cpu(self):
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
