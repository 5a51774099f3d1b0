"""pgjdbc from Java; scripts/test installs both."""

import subprocess
from pathlib import Path

JAR = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).parent / "clients" / "Jdbc.java"


def test_jdbc(server):
    done = subprocess.run(
        ["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", str(JAR), str(SOURCE), server.pg],
        timeout=200,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr[-3000:]
