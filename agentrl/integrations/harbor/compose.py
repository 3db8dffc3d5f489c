"""`environment/docker-compose.yaml` of a Harbor task folder, as far as one container serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from agentrl.types.errors import TaskError

_SERVED = frozenset({"build", "command", "container_name", "environment", "hostname", "image", "init", "restart",
                     "stdin_open", "tty"})  # fmt: skip
"""Keys of the service `main` that a sandbox serves, or needs no part of: its own program is the toolbox."""


def compose_path(folder: Path) -> Path | None:
    """Returns the compose file of a task; None if it has none."""
    paths = (folder / "environment" / f"docker-compose.{suffix}" for suffix in ("yaml", "yml"))
    return next((path for path in paths if path.exists()), None)


def beyond_one_container(folder: Path) -> str | None:
    """Returns what of a compose file one container does not serve; None if it serves all, or there is no file.

    Raises:
        TaskError: the file is not YAML of the form.
    """
    path = compose_path(folder)
    if path is None:
        return None
    services = _services(path)
    if others := sorted(set(services) - {"main"}):
        return f"several containers ({path.name}: {', '.join(others)})"
    main = services.get("main") or {}
    if unserved := sorted(set(main) - _SERVED):
        return f"{unserved[0]} of its container ({path.name})"
    built = main.get("build", ".")
    context = built.get("context", ".") if isinstance(built, Mapping) else built
    if "$" not in str(context) and str(context).strip("./"):
        return f"a build of {context} ({path.name})"
    if "$" not in str(main.get("image", "$")):
        return f"the image {main['image']} ({path.name}): write it to environment.docker_image"
    return None


def compose_env(folder: Path) -> dict[str, str]:
    """Returns the variables of the service `main`."""
    path = compose_path(folder)
    held = (_services(path).get("main") or {}).get("environment") or {} if path is not None else {}
    if isinstance(held, Mapping):
        return {str(name): "" if value is None else str(value) for name, value in held.items()}
    return dict(str(each).partition("=")[::2] for each in held)


def _services(path: Path) -> dict[str, dict[str, Any]]:
    try:
        held = YAML(typ="safe").load(path.read_text()) or {}
        services = held.get("services") or {}
        if set(held) - {"services", "version", "name"}:
            services = {**services, f"{sorted(set(held) - {'services', 'version', 'name'})[0]}": {}}
        assert all(each is None or isinstance(each, Mapping) for each in services.values())
        return dict(services)
    except (YAMLError, UnicodeDecodeError, AttributeError, AssertionError, TypeError) as error:
        said = f"it is no compose file: {str(error).splitlines()[0] if str(error) else 'of another form'}"
        raise TaskError(said, place=str(path), remedy="mend the file, or leave the task out (tasks.exclude)") from None
