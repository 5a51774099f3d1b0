"""Messages of PostgreSQL's protocol, byte by byte, for what no driver sends."""

import socket
import struct


def message(kind, body=b""):
    return kind + struct.pack("!i", len(body) + 4) + body


def startup(**parameters):
    body = struct.pack("!i", 196608)
    for name, value in {"user": "fuzz", "database": "clink", **parameters}.items():
        body += name.encode() + b"\0" + value.encode() + b"\0"
    body += b"\0"
    return struct.pack("!i", len(body) + 4) + body


def query(sql):
    return message(b"Q", sql.encode() + b"\0")


def parse(sql, name="", types=()):
    body = name.encode() + b"\0" + sql.encode() + b"\0" + struct.pack("!h", len(types))
    return message(b"P", body + b"".join(struct.pack("!I", oid) for oid in types))


def bind(values=(), portal="", name="", formats=(), results=()):
    body = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack("!h", len(formats))
    body += b"".join(struct.pack("!h", code) for code in formats) + struct.pack("!h", len(values))
    for value in values:
        body += struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
    return message(b"B", body + struct.pack("!h", len(results)) + b"".join(struct.pack("!h", code) for code in results))


def describe(kind, name=""):
    return message(b"D", kind + name.encode() + b"\0")


def execute(portal="", rows=0):
    return message(b"E", portal.encode() + b"\0" + struct.pack("!i", rows))


SYNC = message(b"S")


class Raw:
    """A session whose messages are written and read one by one."""

    def __init__(self, server):
        host, port = server.pg.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.buffer = b""
        self.socket.sendall(startup())
        assert self.until_ready()[0][0] == "R"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *messages):
        self.socket.sendall(b"".join(messages))

    def next(self):
        """Kind and body of the next message; `None` at the end of the connection."""
        while len(self.buffer) < 5 or len(self.buffer) < 1 + struct.unpack("!i", self.buffer[1:5])[0]:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.buffer += data
        length = 1 + struct.unpack("!i", self.buffer[1:5])[0]
        frame, self.buffer = self.buffer[:length], self.buffer[length:]
        return frame[:1].decode(), frame[5:]

    def until_ready(self):
        """All messages up to ReadyForQuery, or to the end."""
        found = []
        while True:
            one = self.next()
            if one is None:
                return found
            found.append(one)
            if one[0] == "Z":
                return found

    def ask(self, *messages):
        """What messages answer: the kinds in one word, and the messages."""
        self.send(*messages)
        found = self.until_ready()
        return "".join(kind for kind, _ in found), found


def fields(body):
    """The fields of an error."""
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}


def values(body):
    """The values of a row."""
    (count,) = struct.unpack("!h", body[:2])
    at, found = 2, []
    for _ in range(count):
        (length,) = struct.unpack("!i", body[at : at + 4])
        at += 4
        found.append(None if length < 0 else body[at : at + length])
        at += max(length, 0)
    return found


def all_rows(found):
    return [values(body) for kind, body in found if kind == "D"]
