"""pgjdbc, when there is a Java and Debian's driver; scripts/test installs both."""

import shutil
import subprocess
from pathlib import Path

import pytest

JAR = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).parent / "clients" / "Jdbc.java"


@pytest.mark.skipif(shutil.which("javac") is None or not JAR.exists(), reason="no JDK or no pgjdbc here")
def test_jdbc(server):
    done = subprocess.run(
        ["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", str(JAR), str(SOURCE), server.pg],
        timeout=200,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr[-3000:]
