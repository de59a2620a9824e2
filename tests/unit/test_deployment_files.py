"""What ``api/`` and ``operator/`` bring for running: images, services, manifests. Parsed, and held to
what they promise: nobody privileged, nothing written but state, probes and settings that exist."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from mdm_api.table import OPERATIONS
from mdm_gitops.cli import main as program
from mdm_gitops.settings import setting_names

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("api", "operator")
PORTS = {"api": 8080, "operator": 9090}
SETTINGS = set(setting_names())
NAMED = re.compile(r"\bMdm__[A-Za-z_]+\b")
FILES = sorted(
    path
    for part in PARTS
    for pattern in ("Dockerfile", "systemd/*", "kubernetes/*.yaml")
    for path in (ROOT / part).glob(pattern)
)


def paths_of(part: str) -> set[str]:
    """The paths that the program answers without a key."""
    if part == "api":
        return {operation.path for operation in OPERATIONS}
    text = (ROOT / "operator" / "mdm_operator" / "metrics.py").read_text("utf-8")
    return set(re.findall(r'case "(/[a-z]+)"', text))


def runs(words: list[str]) -> None:
    """Check that the command line *words* exists: command, folder, options."""
    command = program.get_command(click.Context(program), words[0])
    assert command is not None, words
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words[1:] if word.startswith("-")} <= options


def test_the_files_are_there() -> None:
    assert len(FILES) == 2 * (1 + 2 + 6) + 1


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_setting_exists(file: Path) -> None:
    assert set(NAMED.findall(file.read_text("utf-8"))) - SETTINGS == set()


# --- images ---------------------------------------------------------------------------------------


def instructions(part: str) -> list[tuple[str, str]]:
    text = (ROOT / part / "Dockerfile").read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined)]


@pytest.mark.parametrize("part", PARTS)
def test_an_image_is_built_in_two_stages_and_runs_as_nobody(part: str) -> None:
    found = instructions(part)
    stages = [index for index, (word, _) in enumerate(found) if word == "FROM"]
    assert len(stages) == 2
    last = dict(found[stages[1] :])
    uid, _, gid = last["USER"].partition(":")
    assert int(uid) > 0 and int(gid) > 0
    assert "pip" not in " ".join(rest for word, rest in found[stages[1] :] if word == "RUN")
    assert all(word != "ADD" for word, _ in found)
    assert all(":latest" not in rest and ":" in rest for word, rest in found if word == "FROM")
    assert last["STOPSIGNAL"] == "SIGTERM"


@pytest.mark.parametrize("part", PARTS)
def test_an_image_is_built_from_what_is_here_and_sent_to_the_builder(part: str) -> None:
    sent = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = [rest for word, rest in instructions(part) if word == "COPY" and "--from" not in rest]
    for line in copied:
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in sent, source
    assert "*" in sent


@pytest.mark.parametrize("part", PARTS)
def test_an_image_is_built_from_all_that_the_package_is_made_of(part: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    copied = [rest for word, rest in instructions(part) if word == "COPY" and "--from" not in rest]
    sources = {source for line in copied for source in line.split()[:-1]}
    assert sources == needed | {*wheel["packages"], *wheel["force-include"]}


def test_the_two_images_differ_in_what_they_run_alone() -> None:
    """So a builder makes what they have in common once; each folder still has all of its own."""
    first, second = (instructions(part) for part in PARTS)
    own = {"ENV", "EXPOSE", "HEALTHCHECK", "CMD"}
    assert [word for word, _ in first] == [word for word, _ in second]
    assert {one[0] for one, other in zip(first, second, strict=True) if one != other} == own


@pytest.mark.parametrize("part", PARTS)
def test_an_image_asks_itself_how_it_is(part: str) -> None:
    found = dict(instructions(part))
    check = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "healthcheck", "exec")
    port, path = re.search(r"127\.0\.0\.1:(\d+)(/\w+)", check[2]).groups()  # type: ignore[union-attr]
    assert int(port) == PORTS[part] == int(found["EXPOSE"])
    assert path in paths_of(part)
    assert json.loads(found["ENTRYPOINT"]) == ["mdm-gitops"]
    runs(json.loads(found["CMD"]))


def test_nothing_of_it_is_in_the_package() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    packages = wheel["targets"]["wheel"]["packages"]
    assert packages == ["mdm_gitops", "operator/mdm_operator", "api/mdm_api"]
    assert not any((ROOT / package) in file.parents for package in packages for file in FILES)


# --- services -------------------------------------------------------------------------------------


def service(part: str) -> dict[str, list[str]]:
    text = (ROOT / part / "systemd" / f"mdm-gitops-{part}.service").read_text("utf-8")
    section, found = "", dict[str, list[str]]()
    for line in text.splitlines():
        if line.startswith("["):
            section = line
        elif "=" in line and not line.startswith("#"):
            assert section in ("[Unit]", "[Service]", "[Install]")
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("part", PARTS)
def test_a_service_has_no_rights_it_does_not_need(part: str) -> None:
    found = service(part)
    for name in (
        *("DynamicUser", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome"),
        *("ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups"),
        *("RestrictNamespaces", "RestrictSUIDSGID", "RestrictRealtime", "LockPersonality"),
    ):
        assert found[name] == ["yes"], name
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert found["Restart"] == ["always"]


@pytest.mark.parametrize("part", PARTS)
def test_a_service_runs_a_command_that_exists_in_its_own_state(part: str) -> None:
    found = service(part)
    words = shlex.split(found["ExecStart"][0])
    assert words[0].endswith("/mdm-gitops")
    runs(words[1:])
    state = f"/var/lib/{found['StateDirectory'][0]}"
    assert found["WorkingDirectory"] == [state] and state in words
    example = (ROOT / part / "systemd" / f"{part}.env.example").read_text("utf-8")
    assert found["EnvironmentFile"] == [f"/etc/mdm-gitops/{part}.env"]
    assert "Mdm__Database__Url=" in example


# --- manifests ------------------------------------------------------------------------------------


def manifest(part: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        (ROOT / part / "kubernetes" / f"{name}.yaml").read_text("utf-8")
    )
    return found


def of_kind(part: str, kind: str) -> dict[str, Any]:
    names = manifest(part, "kustomization")["resources"]
    found = [manifest(part, name.removesuffix(".yaml")) for name in names]
    (only,) = [each for each in found if each["kind"] == kind]
    return only


def labels(part: str) -> dict[str, str]:
    found: dict[str, str] = of_kind(part, "Deployment")["spec"]["template"]["metadata"]["labels"]
    return found


@pytest.mark.parametrize("part", PARTS)
def test_the_base_names_each_file_and_no_other(part: str) -> None:
    files = {path.name for path in (ROOT / part / "kubernetes").glob("*")}
    assert set(manifest(part, "kustomization")["resources"]) == files - {"kustomization.yaml"}
    for path in (ROOT / part / "kubernetes").glob("*.yaml"):
        document = yaml.safe_load(path.read_text("utf-8"))
        assert document["kind"] and document["apiVersion"]
        assert document["kind"] != "Secret"


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_is_nobody_and_writes_only_to_its_volumes(part: str) -> None:
    pod = of_kind(part, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(
        dict(instructions(part))["USER"].split(":")[0]
    )
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts) == {"/var/lib/mdm-gitops", "/tmp"}
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]


def probes(part: str) -> Iterator[tuple[dict[str, Any], Any]]:
    (container,) = of_kind(part, "Deployment")["spec"]["template"]["spec"]["containers"]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        yield container[name]["httpGet"], container["ports"]


@pytest.mark.parametrize("part", PARTS)
def test_probes_ask_what_there_is(part: str) -> None:
    for probe, ports in probes(part):
        assert probe["path"] in paths_of(part)
        assert {port["name"]: port["containerPort"] for port in ports} == {
            probe["port"]: PORTS[part]
        }
    paths = [probe["path"] for probe, _ in probes(part)]
    assert paths == ["/healthz", "/healthz", "/readyz"]  # a database that is down restarts nobody


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_runs_a_command_that_exists_with_settings_that_exist(part: str) -> None:
    pod = of_kind(part, "Deployment")["spec"]["template"]["spec"]
    runs(pod["containers"][0]["args"])
    settings = of_kind(part, "ConfigMap")
    assert settings["data"].keys() <= SETTINGS
    assert all(isinstance(value, str) for value in settings["data"].values())
    given = pod["containers"][0]["envFrom"]
    assert {"configMapRef": {"name": settings["metadata"]["name"]}} in given
    assert int(settings["data"][_port_setting(part)]) == PORTS[part]


def _port_setting(part: str) -> str:
    return {"api": "Mdm__Server__Port", "operator": "Mdm__Operator__MetricsPort"}[part]


@pytest.mark.parametrize("part", PARTS)
def test_the_other_objects_speak_of_the_same_pods(part: str) -> None:
    deployment = of_kind(part, "Deployment")
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        of_kind(part, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind(part, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    if part == "api":
        selectors.append(of_kind(part, "Service")["spec"]["selector"])
    assert all(selector == labels(part) for selector in selectors)
    assert (
        of_kind(part, "PodDisruptionBudget")["spec"]["minAvailable"]
        < deployment["spec"]["replicas"]
    )
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    assert of_kind(part, "ServiceAccount")["metadata"]["name"] == account


@pytest.mark.parametrize("part", PARTS)
def test_the_network_is_closed_but_for_what_is_named(part: str) -> None:
    policy = of_kind(part, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    named = {port["name"] for _, ports in probes(part) for port in ports}
    assert {each["port"] for rule in policy["ingress"] for each in rule["ports"]} == named
    assert {each["port"] for rule in policy["egress"] for each in rule["ports"]} == {53, 5432, 443}


def test_each_dependency_has_a_floor() -> None:
    """So that an installation has nothing older than what was tested, and than known advisories."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [
        Requirement(text)
        for listed in (project["dependencies"], *project["optional-dependencies"].values())
        for text in listed
    ]
    others = [each for each in wanted if not each.name.startswith(("mdm-gitops", "types-"))]
    assert len(others) > 20
    assert [str(each) for each in others if not _floor(each)] == []
    known = {each.name.lower(): version(each.name) for each in others if _is_there(each.name)}
    old = [
        each
        for each in others
        if each.name.lower() in known
        and Version(known[each.name.lower()]) < (_floor(each) or Version("0"))
    ]
    assert old == []


def _floor(wanted: Requirement) -> Version | None:
    floors = [
        Version(each.version) for each in wanted.specifier if each.operator in (">=", "==", "~=")
    ]
    return max(floors, default=None)


def _is_there(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False
