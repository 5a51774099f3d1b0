"""node-postgres, when there is a node; scripts/test installs the package."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
MODULES = CACHE / "clink-node" / "node_modules"


@pytest.mark.skipif(shutil.which("node") is None or not (MODULES / "pg").exists(), reason="no node or no pg here")
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
