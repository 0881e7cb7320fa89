"""docs/tutorial.md, run as whoever reads it would: every command of it, in its order."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.upsert_stream import UpsertStream
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]
ROOT = Path(__file__).parents[2]
SHIMS = {
    # There is no cluster: the chart is rendered with what would be installed, and what it needs is noted.
    "helm": (
        '[ "$1" = install ] && shift && '
        'exec "$REAL_HELM" template "$@" --kube-version 1.30.0 > "$LAKE/manifests.yaml"'
    ),
    "kubectl": 'echo "$@" >> "$LAKE/secrets"',
}
CHECKS = """
nothing_is_pending() {
    for attempt in $(seq 600); do
        pending=$(icestream tables get lake.shop.payments -o json | python -c 'import json, sys
told = json.load(sys.stdin)
print(told["pending_equality_delete_files"], told["measured_at"] is not None)')
        if [ "$pending" = "0 True" ]; then echo "Nothing is pending."; return; fi
        sleep 1
    done
    return 1
}
"""
AFTER = {5: "nothing_is_pending\n"}
"""What is looked at once a step has been followed, beside what it says."""
AT_LAST = """
nothing_is_pending
for attempt in $(seq 100); do grep -q webhook.test "$LAKE/alerts.log" && break; sleep 0.2; done
icestream status
"""
FIRST = UpsertStream(records=20_000, keys=4_000)
"""What Flink writes in step 3."""


def blocks() -> list[tuple[int, str]]:
    """The commands of each block from step 2 on, with the number of the step."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    found = []
    for number, step in re.findall(r"^## (\d+)\.(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        indented = re.findall(r"(?:^(?: {4}.*)?\n)+", step, re.MULTILINE)
        commands = [re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip() for block in indented]
        found += [(int(number), block) for block in commands if block and number != "1"]
    return found


def shown_alert() -> Any:
    """What the page says that the receiver gets, among other things."""
    (shown,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    return json.loads(shown)


def has_all_of(told: Any, shown: Any) -> bool:
    if isinstance(shown, dict):
        return all(has_all_of(told[name], value) for name, value in shown.items())
    return bool(told == shown)


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    lake, port, receiver = tmp_path / "lake", free_port(), free_port()

    def here(commands: str) -> str:
        places = {"$HOME/lake": str(lake), "$HOME/icestream": str(ROOT)}
        places |= {"127.0.0.1:8000": f"127.0.0.1:{port}", "9009": str(receiver)}
        for place, other in places.items():
            commands = commands.replace(place, other)
        return commands

    (tmp_path / "bin").mkdir()
    for name, words in SHIMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{words}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_API")},
        "ICESTREAM_PORT": str(port),
        "ICESTREAM_DATA_DIR": str(tmp_path / "data"),
        "ICESTREAM_POLL_INTERVAL_SECONDS": "1",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "REAL_HELM": subprocess.check_output([ROOT / "scripts" / "install_helm"], text=True).strip(),
    }
    bash = ["bash", "-euo", "pipefail", "-c"]
    (_, first), *others = [(step, here(commands)) for step, commands in blocks()]
    assert first.splitlines()[-1] == "icestream up"
    for shown, run in {
        "source .venv/bin/activate": f"PATH={Path(sys.executable).parent}:$PATH",
        "icestream up": "exec icestream up --no-browser",
    }.items():
        first = first.replace(shown, run)
    log = (tmp_path / "up.log").open("wb")
    began = time.time()
    with log, subprocess.Popen([*bash, first], cwd=ROOT, env=environment, stdout=log, stderr=log) as up:
        try:
            # A person reads what `up` says before they open another terminal.
            said = tmp_path / "up.log"
            wait_until(lambda: "The worker is ready" in said.read_text(), "the worker to be ready")
            timed = [
                f'{commands}\n{AFTER.get(step, "")}echo "{step} $EPOCHSECONDS" | tee -a "$LAKE/steps"'
                for step, commands in others
            ]
            script = "\n".join(timed).replace(
                "source .venv/bin/activate", f"PATH={tmp_path}/bin:{Path(sys.executable).parent}:$PATH"
            )
            # What it has started goes with it.
            script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{CHECKS}\n{script}\n{AT_LAST}"
            done = subprocess.run(
                [*bash, script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(PATIENCE_SECONDS)
    # For whoever writes in the page how long it takes.
    ended = dict(line.split() for line in (lake / "steps").read_text().splitlines())
    print({step: f"done after {int(at) - began:.0f} s" for step, at in ended.items()})  # noqa: T201
    received = [json.loads(line) for line in (lake / "alerts.log").read_text().splitlines()]
    kinds = [one["type"] for one in received]
    assert kinds == ["icestream.webhook.test", "icestream.job.failed"]
    assert has_all_of(received[1], shown_alert())
    told = re.split(r"^(\d+) \d{9,}$", done.stdout, flags=re.MULTILINE)
    of_step = dict(zip(map(int, told[1::2]), told[::2], strict=False))
    candidates, converted = of_step[4], of_step[5]
    assert re.search(r"^lake\.shop\.payments .* \d+,\d{3} ", candidates, re.MULTILINE), candidates
    assert "Nothing is pending." in converted, "before a policy holds"
    (row,) = [row for row in FIRST.expected_rows() if row[0] == 17]
    live = re.findall(r"^17 +yes .* (\d+) *$", converted, re.MULTILINE)
    assert live == [str(row[2])], converted
    assert "Nothing is pending." in told[-1], "the policy has converted what Flink wrote last"
    manifests = list(yaml.safe_load_all((lake / "manifests.yaml").read_text()))
    named = set(re.findall(r"'secret(?:Key)?Ref': \{[^}]*'name': '([\w-]+)'", str(manifests)))
    made = set(re.findall(r"secret generic (\S+)", (lake / "secrets").read_text()))
    assert named == made, "what the page makes is what the chart needs"
