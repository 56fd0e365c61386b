"""Prometheus itself against a daemon of ours: python bench/conformance/prometheus.py

    cd "$(mktemp -d)" && apt-get download prometheus && dpkg -x prometheus_*.deb ~/.cache/llmsrv/conformance/prometheus

promtool reads /metrics, and a server with the plainest configuration scrapes it while requests run; then its own
queries must tell what happened. Definitions:

  lint         what promtool's style check says beside the colon in our names, which vLLM's have, too
  series       time series that one scrape gives
  scrapes      scrapes that the server made, all of them successful
  told         a counter as Prometheus tells it, beside the truth
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon import Daemon
from report import Report

HOME = Path.home() / ".cache/llmsrv/conformance/prometheus/usr/bin"
REQUESTS = 10
STYLE = "metric names should not contain ':'"
CONFIG = """
global:
  scrape_interval: 500ms
scrape_configs:
  - job_name: llmsrv
    static_configs:
      - targets: ["{target}"]
"""
# What a dashboard asks, and the truth.
QUERIES = {
    "up": 1,
    'llmsrv:request_success_total{finished_reason="length"}': REQUESTS,
    'sum(llmsrv:requests_total{outcome="INVALID_ARGUMENT"})': REQUESTS,
    "llmsrv:e2e_request_latency_seconds_count": REQUESTS,
    "llmsrv:generation_tokens_total": REQUESTS * 16,
    'vllm:request_success_total{finished_reason="length"}': REQUESTS,
    "histogram_quantile(0.5, llmsrv:time_to_first_token_seconds_bucket) > bool 0": 1,
}


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def complete(target, **fields):
    """The status of a completion."""
    body = json.dumps({"prompt": "Once upon a time", "ignore_eos": True, **fields}).encode()
    asked = urllib.request.Request(f"http://{target}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def lint(folder, metrics):
    """What promtool says of it; raises when it cannot read it."""
    done = subprocess.run([folder / "promtool", "check", "metrics"], input=metrics, capture_output=True, check=False)
    if done.returncode not in (0, 3):  # 3: it could read it, and dislikes something
        raise SystemExit(f"promtool cannot read /metrics:\n{done.stderr.decode()}")
    return [line for line in done.stderr.decode().splitlines() if STYLE not in line]


class Prometheus:
    """A server that scrapes one target. Use it as a context."""

    def __init__(self, folder, target):
        self._made = tempfile.TemporaryDirectory()
        config = Path(self._made.name) / "prometheus.yml"
        config.write_text(CONFIG.format(target=target))
        subprocess.run([folder / "promtool", "check", "config", config], check=True, capture_output=True)
        self._url = "http://127.0.0.1:19090"
        command = [folder / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={self._made.name}/data"]
        command.append(f"--web.listen-address={self._url.removeprefix('http://')}")
        self._log = open(Path(self._made.name) / "log", "w")  # noqa: SIM115 - open as long as the server runs
        self._process = subprocess.Popen(command, stderr=self._log)

    def query(self, text):
        """Its only value; None while there is none."""
        try:
            found = json.loads(get(f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': text})}"))
        except OSError:
            return None
        values = [float(each["value"][1]) for each in found["data"]["result"]]
        return values[0] if len(values) == 1 else None

    def wait_for(self, text, wanted, timeout_s=30):
        """Its value, which is the wanted one unless that does not come in time."""
        end = time.monotonic() + timeout_s
        while (value := self.query(text)) != wanted and time.monotonic() < end:
            time.sleep(0.2)
        return value

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
        self._made.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", type=Path, default=HOME, help="the folder of promtool and prometheus")
    parser.add_argument("--json", help="append one JSON line per result to this file")
    options = parser.parse_args()
    report = Report("prometheus", options.json)
    flags = ("--model", "smollm2-135m", "--http-port", "0", "--metrics-vllm-names")
    with Daemon(*flags) as daemon, Prometheus(options.prometheus, daemon.http_target) as prometheus:
        statuses = [complete(daemon.http_target, max_tokens=16) for _ in range(REQUESTS)]
        statuses += [complete(daemon.http_target, top_p=7) for _ in range(REQUESTS)]
        if statuses != [200] * REQUESTS + [400] * REQUESTS:
            raise SystemExit(f"unexpected answers: {statuses}")
        told = {text: [prometheus.wait_for(text, wanted), wanted] for text, wanted in QUERIES.items()}
        prometheus.wait_for("count_over_time(up[1h]) >= bool 5", 1)
        scrapes = prometheus.query("count_over_time(up[1h])")
        failed = scrapes - prometheus.query("sum_over_time(up[1h])")
        series = prometheus.query("scrape_samples_scraped")
        disliked = lint(options.prometheus, get(f"http://{daemon.http_target}/metrics"))
    report.add(
        f"Prometheus: {series:.0f} series, {scrapes:.0f} scrapes, {failed:.0f} of them failed; promtool reads it, and "
        f"says of its style, the colon aside: {disliked or 'nothing'}; told and true: {told}",
        series=series,
        scrapes=scrapes,
        failed=failed,
        lint=disliked,
        told=told,
    )
    if failed or disliked or any(found != wanted for found, wanted in told.values()):
        raise SystemExit("that is not the truth, or not in a form that Prometheus likes")


if __name__ == "__main__":
    main()
