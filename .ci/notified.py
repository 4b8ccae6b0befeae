"""Starts a server as systemd does, and ends it. Usage: notified.py BINARY STORE

The server must notify systemd that it is ready, then keep the watchdog alive, then report that it
stops. Checks its health over HTTP meanwhile, as an orchestrator does.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

PATIENCE_SECONDS = 60


def main(binary, store):
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        path = os.path.join(folder, "notify")
        told.bind(path)
        told.settimeout(PATIENCE_SECONDS)
        line = [binary, "serve", "--json", "--data", store, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        env = {**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000"}
        env.pop("WATCHDOG_PID", None)
        server = subprocess.Popen(line, env=env, stdout=subprocess.PIPE)
        try:
            heard = [told.recv(4096).decode().strip() for _ in range(4)]
            assert heard[0] == "READY=1", heard
            assert heard[1:] == ["WATCHDOG=1"] * 3, heard
            metrics = json.loads(server.stdout.readline())["metrics"]
            for name in ("live", "ready"):
                try:
                    with urllib.request.urlopen(metrics.replace("/metrics", f"/{name}"), timeout=30) as answer:
                        assert answer.read().decode() == f"{name}\n"
                except urllib.error.HTTPError as error:
                    sys.exit(f"{name}: {error.read().decode()}")
            server.send_signal(signal.SIGTERM)
            while (last := told.recv(4096).decode().strip()) == "WATCHDOG=1":
                pass
            assert last == "STOPPING=1", last
            assert server.wait(PATIENCE_SECONDS) == 0, server.returncode
        finally:
            server.kill()
            server.wait()
    print("ready, live, stopping: told")


if __name__ == "__main__":
    main(*sys.argv[1:])
