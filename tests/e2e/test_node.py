"""node-postgres; scripts/test installs it and node."""

import os
import subprocess
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
MODULES = CACHE / "clink-node" / "node_modules"


def test_node(server):
    script = Path(__file__).parent / "clients" / "node_pg.js"
    done = subprocess.run(
        ["node", str(script), server.pg],
        timeout=120,
        capture_output=True,
        text=True,
        env={**os.environ, "NODE_PATH": str(MODULES)},
    )
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr[-3000:]
