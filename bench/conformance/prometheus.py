"""Prometheus itself against a daemon of ours: python bench/conformance/prometheus.py

    cd "$(mktemp -d)" && apt-get download prometheus && dpkg -x prometheus_*.deb ~/.cache/llmsrv/conformance/prometheus

promtool reads /metrics, and a server with the configuration and the alerts of deploy/, where only the target is
another, scrapes it while requests run; then its own queries must tell what happened, and it must take every query of
the Grafana dashboard. Definitions:

  lint         what promtool's style check says beside the colon in our names, which vLLM's have, too
  series       time series that one scrape gives
  scrapes      scrapes that the server made, all of them successful
  told         a counter as Prometheus tells it, beside the truth
  alerts       the state of each alert, once all were evaluated
  dashboard    queries of the dashboard that gave data, and all of them
"""

import argparse
import json
import re
import shutil
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
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TARGET = "127.0.0.1:8000"  # of deploy/prometheus.yml
# What a dashboard asks, and the truth.
QUERIES = {
    "up": 1,
    'llmsrv:request_success_total{finished_reason="length"}': REQUESTS,
    'sum(llmsrv:requests_total{outcome="INVALID_ARGUMENT"})': REQUESTS,
    'sum(llmsrv:call_errors_total{protocol="http", code="INVALID_ARGUMENT"})': REQUESTS,
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


def configuration(folder, target):
    """Writes the repository's own into a folder, for this target; the path."""
    text = (DEPLOY / "prometheus.yml").read_text()
    if text.count(TARGET) != 1:
        raise SystemExit(f"deploy/prometheus.yml does not scrape {TARGET} once")
    shutil.copy(DEPLOY / "alerts.yml", folder)
    path = folder / "prometheus.yml"
    path.write_text(text.replace(TARGET, target))
    return path


def dashboard_queries():
    """What the panels ask, with every variable at its widest."""
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        for each in panel.get("targets", []):
            yield re.sub(r"\$\w+", ".*", each["expr"].replace("$__rate_interval", "1m"))


class Prometheus:
    """A server that scrapes one target. Use it as a context."""

    def __init__(self, folder, target):
        self._made = tempfile.TemporaryDirectory()
        config = configuration(Path(self._made.name), target)
        subprocess.run([folder / "promtool", "check", "config", config], check=True, capture_output=True)
        self._url = "http://127.0.0.1:19090"
        command = [folder / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={self._made.name}/data"]
        command.append(f"--web.listen-address={self._url.removeprefix('http://')}")
        self._log = open(Path(self._made.name) / "log", "w")  # noqa: SIM115 - open as long as the server runs
        self._process = subprocess.Popen(command, stderr=self._log)

    def values(self, text):
        """All values of a query. Raises HTTPError for one that it does not take."""
        found = json.loads(get(f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': text})}"))
        return [float(each["value"][1]) for each in found["data"]["result"]]

    def query(self, text):
        """Its only value; None while there is none."""
        try:
            values = self.values(text)
        except OSError:
            return None
        return values[0] if len(values) == 1 else None

    def alerts(self, timeout_s=60):
        """Their states, once all were evaluated. Raises SystemExit for one that cannot be."""
        end = time.monotonic() + timeout_s
        while True:
            groups = json.loads(get(f"{self._url}/api/v1/rules"))["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            if rules and all(rule["health"] == "ok" for rule in rules):
                return {rule["name"]: rule["state"] for rule in rules}
            if time.monotonic() > end:
                raise SystemExit(f"alerts that cannot be evaluated: {rules}")
            time.sleep(1)

    def wait_for(self, text, wanted, timeout_s=60):
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
        alerts = prometheus.alerts()
        answered = [bool(prometheus.values(each)) for each in dashboard_queries()]
        disliked = lint(options.prometheus, get(f"http://{daemon.http_target}/metrics"))
    report.add(
        f"Prometheus: {series:.0f} series, {scrapes:.0f} scrapes, {failed:.0f} of them failed; promtool reads it, and "
        f"says of its style, the colon aside: {disliked or 'nothing'}; told and true: {told}; alerts: {alerts}; "
        f"{sum(answered)} of the dashboard's {len(answered)} queries gave data",
        series=series,
        scrapes=scrapes,
        failed=failed,
        lint=disliked,
        told=told,
        alerts=alerts,
        dashboard=[sum(answered), len(answered)],
    )
    if set(alerts.values()) != {"inactive"}:
        raise SystemExit("an alert is on although all is well")
    if failed or disliked or any(found != wanted for found, wanted in told.values()):
        raise SystemExit("that is not the truth, or not in a form that Prometheus likes")


if __name__ == "__main__":
    main()
