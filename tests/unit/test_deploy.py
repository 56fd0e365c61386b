"""What lies in deploy/: that each file is valid, and that it agrees with the daemon: flags, paths, ports, metrics.

There is no container runtime and no cluster here: hadolint, the Kubernetes schemas and a PromQL parser judge the files.
"""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import kubernetes_validate
import promql_parser
import pytest
import yaml
from fakes import FakeEngine, fake_model
from prometheus_client.parser import text_string_to_metric_families

from llmsrv.config import ServeConfig
from llmsrv.flags import parse_settings
from llmsrv.serve.http_api.exposition import exposition
from llmsrv.serve.http_api.routes import api
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.serve.listener import Listener
from llmsrv.service import GenerationService

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = ("deployment", "services", "autoscaler", "disruption-budget")
# Not the daemon's: what Prometheus and its configuration add.
SCRAPE_LABELS = {"job", "instance", "namespace", "pod", "le"}


def served_metrics():
    """Labels of each series that /metrics has, by its name."""

    async def text():
        service = GenerationService(fake_model(FakeEngine()))
        service._outcomes["stop"] = 1
        try:
            return exposition([service], {("grpc", "NOT_FOUND", "MODEL_NOT_FOUND"): 1})
        finally:
            await service.close()

    found = {}
    for family in text_string_to_metric_families(asyncio.run(text())):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


SERVED = served_metrics()


# --- Prometheus and Grafana ---


def grafana():
    return json.loads((DEPLOY / "grafana.json").read_text())


def adapter_rules():
    return yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]


def queries():
    """(where, PromQL)"""
    for panel in grafana()["panels"]:
        for target in panel.get("targets", []):
            yield f"grafana: {panel['title']} {target['refId']}", target["expr"].replace("$__rate_interval", "1m")
    for variable in grafana()["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            yield f"grafana: variable {variable['name']}", f"sum by ({label}) ({series})"
    for rule in (rule for group in alerts()["groups"] for rule in group["rules"]):
        yield f"alert: {rule['alert']}", rule["expr"]
    for rule in adapter_rules():
        series = re.search(r'__name__="([^"]+)"', rule["seriesQuery"])[1]
        query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod").replace("<<.Series>>", series)
        yield f"adapter: {rule['name']['as']}", query.replace("<<.LabelMatchers>>", 'namespace="x"')


def alerts():
    return yaml.safe_load((DEPLOY / "alerts.yml").read_text())


ALL_QUERIES = dict(queries())


@pytest.mark.parametrize("query", ALL_QUERIES.values(), ids=ALL_QUERIES.keys())
def test_a_query_asks_for_what_is_served(query):
    names = re.findall(r"llmsrv:\w+", query)
    assert names or query.startswith("up{")
    labels = {*SCRAPE_LABELS, *(label for name in names for label in SERVED.get(name, ()))}
    assert [name for name in names if name not in SERVED] == []
    used = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    used += [each.strip() for group in re.findall(r"by \(([^)]*)\)", query) for each in group.split(",")]
    assert [label for label in used if label not in labels] == []
    for label in re.findall(r'state=~?"([^"]+)"', query):
        assert {*label.split("|")} <= {"serving", "failed", "stalled"}


@pytest.mark.parametrize("query", ALL_QUERIES.values(), ids=ALL_QUERIES.keys())
def test_a_query_is_promql(query):
    promql_parser.parse(query)


def test_a_metric_that_is_not_served_would_be_found():
    with pytest.raises(AssertionError):
        test_a_query_asks_for_what_is_served("sum(rate(llmsrv:no_such_total[1m]))")
    with pytest.raises(AssertionError):
        test_a_query_asks_for_what_is_served('sum(rate(llmsrv:generation_tokens_total{shard="1"}[1m]))')


def test_the_dashboard_is_one():
    dashboard = grafana()
    panels = dashboard["panels"]
    assert dashboard["uid"] == "llmsrv"
    assert dashboard["schemaVersion"] >= 36
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert {panel["type"] for panel in shown} == {"timeseries", "stat"}
    for panel in shown:
        assert panel["title"]
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__rate_interval", "__all"}
    assert used == variables


def test_prometheus_scrapes_where_the_metrics_are():
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job.get("metrics_path", "/metrics") in paths()
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]
    assert [(DEPLOY / name).exists() for name in config["rule_files"]] == [True]
    pods = yaml.safe_load((DEPLOY / "kubernetes" / "scrape-config.yaml").read_text())["scrape_configs"]
    rewritten = pods[0]["relabel_configs"][2]
    assert re.fullmatch(rewritten["regex"], "10.0.0.7:50051;8000").expand(r"\1:\2") == "10.0.0.7:8000"
    assert re.fullmatch(rewritten["regex"], "10.0.0.7;8000").expand(r"\1:\2") == "10.0.0.7:8000"


# --- Kubernetes ---


def documents():
    return [
        each
        for name in MANIFESTS
        for each in yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
        if each
    ]


def manifest(kind, name="llmsrv"):
    (found,) = (each for each in documents() if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def container():
    (found,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    return found


def paths():
    return {route.path for route in api(Listener()).routes}


def options(flags):
    return parse_settings(ServeConfig, prog="llmsrv-grpc", description="", arguments=flags, environment={}).options


def pod_options():
    return options([*containerfile()["ENTRYPOINT"][1:], *container()["args"]])


@pytest.mark.parametrize("document", documents(), ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_a_manifest_is_valid(document):
    for version in ("1.30", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


def test_kustomization_has_everything_that_is_applied():
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert kustomization["resources"] == [f"{name}.yaml" for name in MANIFESTS]
    assert container()["image"].partition(":")[0] == kustomization["images"][0]["name"]


def test_the_pods_flags_and_ports_are_the_daemons():
    config = pod_options()
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert ports == {"http": config.http_port, "grpc": config.port}
    assert config.host == config.http_host == "0.0.0.0"
    assert config.log_format == "json"
    annotations = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(config.http_port)


def test_the_probes_look_at_paths_that_are_there():
    assert container()["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert container()["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert container()["startupProbe"]["httpGet"]["path"] == "/ready"
    assert {"/health", "/ready", "/metrics"} <= paths()


def test_a_pod_has_the_time_to_drain():
    before = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert container()["lifecycle"]["preStop"]["exec"]["command"][0] == "sleep"
    needed = before + pod_options().drain_timeout + 10
    assert manifest("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= needed


def test_a_pod_may_do_little():
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    user = containerfile()["USER"]
    assert user == f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # LLMSRV_PORT=tcp://... would be read as an option
    mounted = {each["mountPath"]: each["name"] for each in container()["volumeMounts"]}
    assert set(mounted) == {*containerfile()["VOLUME"].split(), "/tmp"}
    assert set(mounted.values()) == {each["name"] for each in pod["volumes"]}


def test_a_pod_has_room_for_what_it_is_told_to_hold():
    resources = container()["resources"]
    assert set(resources["limits"]) == {"cpu", "memory"}
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "2Gi"
    weights_and_process = 400 << 20
    assert pod_options().kv_cache_memory + pod_options().swap_space + weights_and_process < 2 << 30


def test_everything_selects_the_pods():
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [manifest("Service")["spec"]["selector"], manifest("Service", "llmsrv-grpc")["spec"]["selector"]]
    selectors += [manifest(kind)["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert manifest("Service", "llmsrv-grpc")["spec"]["clusterIP"] == "None"
    for service in (manifest("Service"), manifest("Service", "llmsrv-grpc")):
        (port,) = service["spec"]["ports"]
        assert port["targetPort"] in {each["name"] for each in container()["ports"]}


def test_the_autoscaler_scales_on_metrics_that_the_adapter_makes():
    autoscaler = manifest("HorizontalPodAutoscaler")["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == manifest("Deployment")["metadata"]["name"]
    asked = {each["pods"]["metric"]["name"] for each in autoscaler["metrics"]}
    assert asked == {each["name"]["as"] for each in adapter_rules()}
    assert autoscaler["minReplicas"] >= 2  # one may be disrupted


# --- the container ---


def instructions(stage=None):
    """(instruction, arguments) of the Containerfile's last stage, or of all stages that are named so."""
    text = re.sub(r"\\\n(?:\s*#.*\n)*", " ", (DEPLOY / "Containerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = [tuple(line.split(None, 1)) for line in lines]
    starts = [i for i, (word, _) in enumerate(found) if word == "FROM"]
    return found if stage == "all" else found[starts[-1] :]


def containerfile():
    """The last stage: what each instruction says, as a list where that is written as one."""
    return {word: json.loads(rest) if rest.startswith("[") else rest for word, rest in instructions()}


def test_hadolint_accepts_the_containerfile():
    hadolint = shutil.which("hadolint") or shutil.which(str(Path(sys.executable).with_name("hadolint")))
    judged = subprocess.run(
        [hadolint, str(DEPLOY / "Containerfile")], capture_output=True, text=True, check=False, timeout=60
    )
    assert judged.returncode == 0, judged.stdout


def test_both_variants_have_their_stages():
    stages = [rest.split() for word, rest in instructions("all") if word == "FROM"]
    named = {words[2] for words in stages if len(words) == 3}
    assert named >= {f"{step}-{variant}" for step, variant in product(("build", "run"), ("cpu", "cuda"))}
    pulled = [words[0] for words in stages if "$" not in words[0]]
    assert all(re.fullmatch(r"docker\.io/[\w/.-]+:[\w.-]*\d[\w.-]*", image) for image in pulled)
    release = {re.search(r"24\.04", image)[0] for image in pulled}
    assert release == {"24.04"}  # the Python that the package was built for is the one that runs it


def test_the_image_runs_without_root_and_is_what_was_installed():
    image = containerfile()
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image["USER"])
    assert image["STOPSIGNAL"] == "SIGTERM"
    config = options([*image["ENTRYPOINT"][1:], *image["CMD"]])
    assert image["EXPOSE"].split() == [str(config.http_port), str(config.port)]
    scripts = (DEPLOY.parent / "pyproject.toml").read_text()
    assert f"{image['ENTRYPOINT'][0]} = " in scripts
    assert not any(word == "ADD" for word, _ in instructions("all"))


def test_the_image_is_built_without_what_lies_around():
    ignored = (DEPLOY.parent / ".dockerignore").read_text().split()
    assert {".git", "build", "**/*.so"} <= set(ignored)


def test_the_health_check_of_the_image_tells_a_dead_daemon_from_one_that_loads():
    """The very command, with the port of a server here."""
    command = json.loads(containerfile()["HEALTHCHECK"].partition("CMD ")[2])
    assert command[0] == "python3"

    async def test():
        engine, server = FakeEngine(), HttpServer(ServeConfig(model="fake", http_port=0))
        port = await server.start()
        check = [sys.executable, *(each.replace("8000", str(port)) for each in command[1:])]

        async def status():
            ran = await asyncio.create_subprocess_exec(*check, stderr=asyncio.subprocess.DEVNULL)
            return await ran.wait()

        assert await status() == 0  # it loads
        service = GenerationService(fake_model(engine))
        await server.serve(service)
        assert await status() == 0
        engine.fail_all("broken")
        assert await status() == 1
        await server.stop()
        await service.close()
        assert await status() == 1

    asyncio.run(test())


def test_commands_in_the_notes_name_files_that_are_there():
    text = (DEPLOY / "README.md").read_text()
    for command in re.findall(r"^(?:kubectl|podman|prometheus) .*$", text, re.M):
        for word in shlex.split(command.replace("\\", "")):
            if word.startswith("deploy/"):
                assert (DEPLOY.parent / word).exists(), command
