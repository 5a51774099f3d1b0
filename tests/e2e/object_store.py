"""A server of the S3 kind (moto), and a proxy before it that fails on purpose.

As a program, runs a command, for whose tests the state lies in such a server.
"""

import http.client
import logging
import os
import random
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moto.server import ThreadedMotoServer

BUCKET = "state"
# Any are good for moto; those of the machine must not count.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_SESSION_TOKEN": "",
    "AWS_REGION": "us-east-1",
}
# The signature is not checked, but must be there.
SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}
# The client gives up a request that takes longer; the proxy holds what it stalls until then.
REQUEST_SECONDS = 2
PIECE_BYTES = 4096


class ObjectStore:
    """An S3 server on a free port, with one bucket; all in memory."""

    def __enter__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.server.start()
        self.host, self.port = self.server.get_host_and_port()
        self.endpoint = f"http://{self.host}:{self.port}"
        self.request("PUT", f"/{BUCKET}")
        return self

    def __exit__(self, *_):
        self.server.stop()

    def request(self, method, path):
        request = urllib.request.Request(self.endpoint + path, method=method, headers=SIGNED)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def names(self, prefix=""):
        """The objects, in order."""
        listed, token = [], ""
        while True:
            text = self.request("GET", f"/{BUCKET}?list-type=2&prefix={urllib.parse.quote(prefix)}{token}")
            listed += [part.split("</Key>")[0] for part in text.split("<Key>")[1:]]
            if "<NextContinuationToken>" not in text:
                return listed
            next_token = text.split("<NextContinuationToken>")[1].split("<")[0]
            token = "&continuation-token=" + urllib.parse.quote(next_token)


def state_uri(scheme, endpoint, prefix):
    return f"{scheme}://{BUCKET}/{prefix}?endpoint={urllib.parse.quote(endpoint, safe='')}"


class FaultyProxy:
    """Passes requests on to an object store, and lets some fail, by a seeded sequence.

    In `percent` of the requests one of these, with the same chance: no answer before the client gives up; an error without
    the request having been passed on; an error, no answer or a cut answer, though it was; a slow answer. `lose_swaps` next
    answers of conditional writes are lost, after these were done. While `stalled` is set, nothing is answered.
    """

    KINDS = ["stall", "refuse", "fail", "lose", "cut", "slow"]

    def __init__(self, store, percent, seed=1):
        self.store, self.percent = store, percent
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.faults = Counter()
        self.lose_swaps = 0
        self.stalled = threading.Event()

    def __enter__(self):
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def choose(self, handler):
        is_swap = handler.command == "PUT" and ("If-Match" in handler.headers or "If-None-Match" in handler.headers)
        with self.lock:
            kind = None
            if self.stalled.is_set():
                kind = "stall"
            elif is_swap and self.lose_swaps > 0:
                self.lose_swaps -= 1
                kind = "lose a swap"
            elif self.random.random() * 100 < self.percent:
                kind = self.random.choice(self.KINDS)
            if kind:
                self.faults[kind] += 1
            return kind

    def handle(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        kind = self.choose(handler)
        if kind == "stall":
            # Until the client has gone, which then asks again.
            time.sleep(REQUEST_SECONDS + 0.5)
            handler.close_connection = True
            return
        if kind == "refuse":
            self.answer(handler, 503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        upstream = http.client.HTTPConnection(self.store.host, self.store.port, timeout=30)
        try:
            upstream.request(handler.command, handler.path, body, dict(handler.headers))
            response = upstream.getresponse()
            content = response.read()
        finally:
            upstream.close()
        if kind in ("lose", "lose a swap"):
            handler.close_connection = True
            return
        if kind == "fail":
            self.answer(handler, 500, [], b"<Error><Code>InternalError</Code></Error>")
            return
        self.answer(handler, response.status, response.getheaders(), content, kind)

    def answer(self, handler, status, headers, content, kind=None):
        try:
            handler.send_response_only(status)
            names = {name.lower() for name, _ in headers}
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    handler.send_header(name, value)
            # That of HEAD is the object's.
            length = dict((name.lower(), value) for name, value in headers).get("content-length", str(len(content)))
            if handler.command != "HEAD" or "content-length" not in names:
                length = str(len(content))
            handler.send_header("Content-Length", length)
            handler.end_headers()
            if kind == "cut":
                handler.wfile.write(content[: len(content) // 2])
                handler.close_connection = True
            elif kind == "slow":
                for at in range(0, len(content), PIECE_BYTES):
                    handler.wfile.write(content[at : at + PIECE_BYTES])
                    handler.wfile.flush()
                    time.sleep(0.01)
            elif handler.command != "HEAD":
                handler.wfile.write(content)
        except OSError:
            # The client gave up, or was killed.
            handler.close_connection = True


if __name__ == "__main__":
    with ObjectStore() as served:
        uri = state_uri("remote-read", served.endpoint, "{dir}")
        environment = {**os.environ, **CREDENTIALS, "CLINK_TEST_STATE": uri}
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)
