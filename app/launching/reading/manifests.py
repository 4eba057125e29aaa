"""Files that say which containers or engines run: Docker Compose, objects of Kubernetes that hold containers somewhere, values
of llm-d's chart, applications of Ray Serve LLM, tasks of SkyPilot.

Objects are looked through for what holds containers, so that kinds that are not known by name (LeaderWorkerSet, JobSet,
PyTorchJob, ...) are read like those that are.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.app.base.digits import is_digits
from meshwright.app.launching.parts.start import BatchJob
from meshwright.app.launching.reading.wrappers import started_by_image
from meshwright.costmodels.errors import InvalidInputError

_LONGEST_COMMAND = 200_000
"""Characters of the commands of a manifest, with its variables put in."""
_OF_COMPOSE = re.compile(r"\$\$|\$\{(\w+)(?::?-([^{}]*))?\}")
_OF_KUBERNETES = re.compile(r"\$\$|\$\((\w+)\)")
_DEVICE = re.compile(
    r"(?<![a-z0-9])(gb[23]00|gh200|[bh][1238]00|h20|h800|a800|a100|a10g|a40|l40s|l4|t4|v100|mi3\d\dx|mi250x)(?![a-z0-9])"
)
_HOLDERS = ("containers",)
_SINGLE_HOLDERS = ("mainContainer",)
_NODES = {"LeaderWorkerSet": "size", "DynamoGraphDeployment": "nodeCount"}
"""Fields that say how many nodes a server has, by kinds of objects."""
_MODEL_FORMATS = ("huggingface", "vllm")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The containers of a file: words and variables of each, texts of files that it makes, and the devices that it asks for;
    or the script of a task."""

    commands: tuple[tuple[Sequence[str], Mapping[str, str]], ...]
    files: Mapping[str, str] = field(default_factory=dict)
    job: BatchJob | None = None
    script: str | None = None


def manifest_of(documents: Sequence[Mapping[str, Any]]) -> Manifest | None:
    """Return the containers of a file; None of one that is no manifest. Raises InvalidInputError where none is in it."""
    services = next((each["services"] for each in documents if _is_compose(each)), None)
    if services is not None:
        return _compose(services)
    objects = [each for each in documents if "apiVersion" in each and "kind" in each]
    if objects:
        return _kubernetes(objects)
    for each in documents[:1]:
        if isinstance(each.get("modelArtifacts"), Mapping):
            return _chart(each)
        if isinstance(each.get("applications"), list):
            return _applications(each["applications"])
        if isinstance(each.get("run"), str) and isinstance(each.get("resources"), Mapping):
            return _task(each)
    return None


# Values of llm-d's chart, which writes the model and the degrees into the command.


def _chart(values: Mapping[str, Any]) -> Manifest:
    artifacts = values["modelArtifacts"]
    stored = str(artifacts.get("uri", ""))
    model = (
        stored.removeprefix("hf://") if stored.startswith("hf://") and "{{" not in stored else str(artifacts.get("name", ""))
    )
    commands = []
    containers = []
    for pods in (values.get(name) for name in ("decode", "prefill")):
        if not isinstance(pods, Mapping) or pods.get("create") is False:
            continue
        degrees = pods.get("parallelism")
        degrees = degrees if isinstance(degrees, Mapping) else {}
        for container in _containers(pods):
            flags = []
            for name, flag in (("tensor", "--tensor-parallel-size"), ("data", "--data-parallel-size")):
                flags += [flag, _text(degrees[name])] if degrees.get(name) not in (None, 1) else []
            environment = _environment(container.get("env"))
            arguments = [_with_variables(word, environment, _LONGEST_COMMAND) for word in _listed(container.get("args"))]
            start = _listed(container.get("command")) or ["vllm", "serve", model, *flags]
            commands.append(([*start, *arguments], environment))
            containers.append(container)
    return Manifest(tuple(commands), job=_job([], containers))


# Applications of Ray Serve LLM: engine arguments are vLLM's flags by name.


def _applications(applications: list[Any]) -> Manifest:
    commands = []
    for config in (found for each in applications for found in _llm_configs(each)):
        loaded, arguments = config.get("model_loading_config"), config.get("engine_kwargs")
        loaded = loaded if isinstance(loaded, Mapping) else {}
        words = ["vllm", "serve", _text(loaded.get("model_source") or loaded.get("model_id") or "")]
        for name, value in arguments.items() if isinstance(arguments, Mapping) else ():
            flag = "--" + str(name).replace("_", "-")
            if isinstance(value, Mapping | list):
                words += [flag, json.dumps(value)]
            elif value is not False and value is not None:
                words += [flag] if value is True else [flag, _text(value)]
        surroundings = config.get("runtime_env")
        commands.append((words, _environment(surroundings.get("env_vars") if isinstance(surroundings, Mapping) else None)))
    if not commands:
        raise InvalidInputError("no application of this file has an LLM", allowed="args with llm_configs or llm_config")
    return Manifest(tuple(commands))


def _llm_configs(application: object) -> list[Mapping[str, Any]]:
    arguments = application.get("args") if isinstance(application, Mapping) else None
    if not isinstance(arguments, Mapping):
        return []
    listed = arguments.get("llm_configs")
    found = listed if isinstance(listed, list) else [arguments.get("llm_config")]
    return [each for each in found if isinstance(each, Mapping)]


# Tasks of SkyPilot.


def _task(task: Mapping[str, Any]) -> Manifest:
    nodes, asked = task.get("num_nodes", 1), task["resources"].get("accelerators")
    kind, number = next(iter(asked.items()), (None, None)) if isinstance(asked, Mapping) else (None, None)
    if isinstance(asked, str):
        kind, _, count = asked.partition(":")
        number = int(count) if is_digits(count, most=5) else 1
    has_job = isinstance(nodes, int) and isinstance(number, int) and 0 < nodes < 10_000 and number > 0
    job = BatchJob(nodes, number, str(kind)) if has_job else None
    return Manifest((), job=job, script=task["run"])


# Docker Compose.


def _is_compose(document: Mapping[str, Any]) -> bool:
    services = document.get("services")
    return isinstance(services, Mapping) and any(
        isinstance(each, Mapping) and {"image", "build", "command"} & each.keys() for each in services.values()
    )


def _compose(services: Mapping[str, Any]) -> Manifest:
    commands = []
    devices = None
    for service in services.values():
        if not isinstance(service, Mapping):
            continue
        arguments = [_with_defaults(word) for word in _words(service.get("command"))]
        entry = [_with_defaults(word) for word in _words(service.get("entrypoint"))]
        environment = {name: _with_defaults(value) for name, value in _environment(service.get("environment")).items()}
        image = _with_defaults(str(service.get("image", "")))
        commands.append(([*entry, *arguments] if entry else started_by_image(image, arguments), environment))
        devices = devices or _compose_devices(service)
    return Manifest(tuple(commands), job=None if devices is None else BatchJob(1, devices))


def _words(given: object) -> list[str]:
    """A command as a list, or as a text that is split as a shell would."""
    if given is None:
        return []
    if isinstance(given, list):
        return [_text(each) for each in given]
    if len(str(given)) > _LONGEST_COMMAND:
        raise _too_long()
    try:
        return shlex.split(str(given))
    except ValueError as error:
        raise InvalidInputError(f"the command of a container can't be read: {error}") from None


def _text(value: object) -> str:
    return str(value).casefold() if isinstance(value, bool) else str(value)


def _with_defaults(text: str) -> str:
    """The text with the defaults of variables; those without stay as they are written."""
    return _OF_COMPOSE.sub(
        lambda found: "$" if found[0] == "$$" else found[0] if found[2] is None else found[2].strip("\"'"), text
    )


def _environment(given: object) -> dict[str, str]:
    """Variables of a mapping, of a list of ``NAME=value``, or of Kubernetes' list of names and values."""
    if isinstance(given, Mapping):
        return {str(name): _text(value) for name, value in given.items() if value is not None}
    found = {}
    for each in given if isinstance(given, list) else ():
        if isinstance(each, str):
            name, _, value = each.partition("=")
            found[name] = value
        elif isinstance(each, Mapping) and "value" in each:
            found[str(each.get("name"))] = _text(each["value"])
    return {name: value for name, value in found.items() if re.fullmatch(r"[A-Za-z_]\w*", name)}


def _compose_devices(service: Mapping[str, Any]) -> int | None:
    for reserved in _found(service.get("deploy"), "devices"):
        for device in reserved if isinstance(reserved, list) else ():
            if isinstance(device, Mapping):
                count, ids = device.get("count"), device.get("device_ids")
                if isinstance(ids, list) and ids:
                    return len(ids)
                if isinstance(count, int) and count > 0:
                    return count
    return None


# Kubernetes.


def _kubernetes(objects: Sequence[Mapping[str, Any]]) -> Manifest:
    files = {
        str(name): text
        for each in objects
        if each.get("kind") == "ConfigMap" and isinstance(each.get("data"), Mapping)
        for name, text in each["data"].items()
        if isinstance(text, str)
    }
    containers = [container for each in objects for container in _containers(each)]
    if not containers:
        raise InvalidInputError(
            "no object of this file holds a container",
            given=", ".join(str(each.get("kind")) for each in objects[:6]),
            allowed="objects with containers: Pod, Deployment, LeaderWorkerSet, InferenceService, Job, ...",
        )
    room = _LONGEST_COMMAND
    commands = []
    for container in containers:
        environment = _environment(container.get("env"))
        arguments: list[str] = []
        entry: list[str] = []
        for words, given in ((entry, container.get("command")), (arguments, container.get("args"))):
            for word in _listed(given):
                put_in = _with_variables(word, environment, room)
                room -= len(put_in)
                words.append(put_in)
        image = str(container.get("image", ""))
        commands.append(([*entry, *arguments] if entry else started_by_image(image, arguments), environment))
    return Manifest(tuple(commands), files, _job(objects, containers))


def _containers(value: object) -> Iterator[Mapping[str, Any]]:
    """What holds containers, in the order of the file."""
    if isinstance(value, list):
        for each in value:
            yield from _containers(each)
    if not isinstance(value, Mapping):
        return
    for name, each in value.items():
        if name in _HOLDERS and isinstance(each, list):
            yield from (container for container in each if isinstance(container, Mapping))
        elif name in _SINGLE_HOLDERS and isinstance(each, Mapping):
            yield each
        elif name == "model" and isinstance(each, Mapping) and "modelFormat" in each:
            yield _served_model(each)
        else:
            yield from _containers(each)


def _served_model(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that KServe makes of a model: its server of Hugging Face's models runs vLLM."""
    form = model.get("modelFormat")
    name = str(form.get("name") if isinstance(form, Mapping) else form).casefold()
    if name not in _MODEL_FORMATS and not any(engine in str(model.get("runtime", "")) for engine in _MODEL_FORMATS):
        return model
    arguments = [
        re.sub(r"^--model[_-]name", "--served-model-name", re.sub(r"^--model[_-]id", "--model", word))
        for word in _listed(model.get("args"))
    ]
    stored = str(model.get("storageUri", ""))
    named = ["--model", stored.removeprefix("hf://")] if stored.startswith("hf://") else []
    return {**model, "command": model.get("command") or ["vllm", "serve"], "args": [*named, *arguments]}


def _listed(given: object) -> list[str]:
    if isinstance(given, str):
        return [given]
    return [_text(each) for each in given] if isinstance(given, list) else []


def _with_variables(text: str, environment: Mapping[str, str], room: int) -> str:
    """The text with ``$(NAME)`` put in; raises InvalidInputError where that is too long."""
    found: list[str] = []
    at = 0
    for match in _OF_KUBERNETES.finditer(text):
        value = "$" if match[0] == "$$" else environment.get(match[1], match[0])
        found += (text[at : match.start()], value)
        at = match.end()
        room -= len(found[-1]) + len(found[-2])
        if room < 0:
            raise _too_long()
    if len(text) - at > room:
        raise _too_long()
    return "".join(found) + text[at:]


def _job(objects: Sequence[Mapping[str, Any]], containers: Sequence[Mapping[str, Any]]) -> BatchJob | None:
    """The devices of the first container that asks for some, on as many nodes as a group has pods."""
    devices = next((number for each in containers if (number := _devices(each)) is not None), None)
    if devices is None:
        return None
    sizes = [
        size
        for each in objects
        for size in _found(each.get("spec"), _NODES.get(str(each.get("kind")), "size"))
        if isinstance(size, int) and 0 < size < 10_000
    ]
    is_group = any(each.get("kind") in _NODES for each in objects)
    return BatchJob(sizes[0] if is_group and sizes else 1, devices, _kind(objects))


def _devices(container: Mapping[str, Any]) -> int | None:
    resources = container.get("resources")
    for part in ("limits", "requests"):
        given = resources.get(part) if isinstance(resources, Mapping) else None
        for name, number in given.items() if isinstance(given, Mapping) else ():
            text = str(number)
            if str(name).rpartition("/")[2] == "gpu" and is_digits(text, most=5) and int(text) > 0:
                return int(text)
    return None


def _kind(objects: Sequence[Mapping[str, Any]]) -> str | None:
    """The device that a selector of nodes names."""
    for selector in (found for each in objects for found in _found(each, "nodeSelector")):
        for name, value in selector.items() if isinstance(selector, Mapping) else ():
            known = _DEVICE.search(str(value).casefold())
            if known is not None and re.search(r"gpu|accelerator", str(name)):
                return known[1] + ("-80GB" if known[1] == "a100" and "80" in str(value) else "")
    return None


def _found(value: object, wanted: str) -> Iterator[Any]:
    """Each value under a key, however deep."""
    if isinstance(value, list):
        for each in value:
            yield from _found(each, wanted)
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name == wanted:
                yield each
            else:
                yield from _found(each, wanted)


def _too_long() -> InvalidInputError:
    return InvalidInputError(f"the commands of the containers are longer than {_LONGEST_COMMAND:,} characters")
