"""`agentrl sandbox`: proves, tries and cleans up after sandbox backends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agentrl.commands.output import Json, progress, write_json
from agentrl.sandbox import engine_images, images
from agentrl.sandbox.conformance import Arena, Check, CheckResult, checks, run_check
from agentrl.sandbox.registry import BACKENDS, open_backend
from agentrl.types.errors import AgentRLError, MissingExtra, RecipeError, nearest
from agentrl.types.sandbox import SandboxSpec

app = typer.Typer(no_args_is_help=True, help="Prove, try, build and clean up sandboxes.")

BackendName = Annotated[str, typer.Argument(help="A backend's name, or pkg.module:Class.")]
Image = Annotated[str | None, typer.Option(help="Container image to use.")]
Rootfs = Annotated[str | None, typer.Option(help="Folder to use as the root file system.")]

_SHOWN = 3  # names shown per kind of removed object
_COLOURS = {"pass": "green", "fail": "red", "not claimed": "yellow"}


@app.command("check")
def check_command(
    backend: Annotated[str | None, typer.Argument(help="A backend's name, or pkg.module:Class.")] = None,
    only: Annotated[list[str], typer.Option(help="Only this check (see --list); may be given again.")] = [],  # noqa: B006
    image: Image = None,
    rootfs: Rootfs = None,
    as_json: Json = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the checks, without a backend.")] = False,
) -> None:
    """Run the conformance suite against a backend. Exit code 1 if a check fails."""
    known = checks()
    if listed:
        return _list(known, as_json)
    if backend is None:
        raise typer.BadParameter("say which backend, or --list")
    for name in only:
        if name not in known:
            raise RecipeError(f"there is no check {name!r}", place="--only", remedy=nearest(name, known))
    findings = asyncio.run(_check(backend, only or list(known), _spec(image, rootfs)))
    failed = sum(finding.status == "fail" for finding in findings)
    if as_json:
        write_json({"backend": backend, "failed": failed, "checks": findings})
    else:
        passed = sum(finding.status == "pass" for finding in findings)
        took = sum(finding.duration_s for finding in findings)
        others = len(findings) - passed - failed
        print(f"{backend}: {passed} passed, {failed} failed, {others} not claimed in {took:.0f} s")
    sys.exit(1 if failed else 0)


def _list(known: dict[str, Check], as_json: bool) -> None:
    if as_json:
        return write_json([{"name": check.name, "proves": check.proves} for check in known.values()])
    for check in known.values():
        print(f"{check.name:35} {check.proves}")


async def _check(name: str, names: list[str], base: SandboxSpec) -> list[CheckResult]:
    backend = open_backend(name)
    console = Console()
    findings = []
    try:
        backend.preflight(base)
        if note := backend.capabilities.note:
            console.print(f"note: {note}")
        for each in names:
            finding = await run_check(checks()[each], Arena(backend, name, base))
            findings.append(finding)
            table = Table.grid(padding=(0, 2))
            table.add_column(width=11)
            table.add_column(width=30)
            table.add_row(f"[{_COLOURS[finding.status]}]{finding.status}[/]", finding.name, finding.proves)
            if finding.detail:
                table.add_row("", "", f"[{_COLOURS[finding.status]}]{finding.detail}[/]")
            console.print(table)
    finally:
        await backend.close()
    return findings


@app.command("run", context_settings={"ignore_unknown_options": True})
def run_command(
    backend: BackendName,
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    image: Image = None,
    rootfs: Rootfs = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds.")] = 60.0,
) -> None:
    """Run one command in a fresh sandbox. Stdin goes in unless it is a terminal; the exit code is the command's."""
    stdin = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    sys.exit(asyncio.run(_run(backend, command, stdin, _spec(image, rootfs), timeout_s)))


async def _run(name: str, command: list[str], stdin: bytes, spec: SandboxSpec, timeout_s: float) -> int:
    backend = open_backend(name)
    try:
        async with await backend.create(spec, label="sandbox run") as sandbox:
            result = await sandbox.exec(command, stdin=stdin, timeout_s=timeout_s)
    finally:
        await backend.close()
    sys.stdout.buffer.write(result.stdout)
    sys.stderr.buffer.write(result.stderr)
    if result.outcome not in ("ok", "nonzero"):
        print(f"[ended by {result.outcome}]", file=sys.stderr)
    return 124 if result.outcome == "timeout" else 1 if result.code is None else result.code


@app.command("build")
def build_command(
    name: Annotated[str | None, typer.Argument(help="An image; without one: the list.")] = None,
    mirror: Annotated[str, typer.Option(help="Of Debian packages.")] = images.MIRROR,
    tar: Annotated[Path | None, typer.Option(help="Also write the root file system to this archive.")] = None,
    as_json: Json = False,
) -> None:
    """Build a sandbox image without a registry, for `namespace`, and for a container engine if one answers."""
    if name is None:
        return _list_images(as_json)
    with progress():
        rootfs, image = images.build(name, mirror=mirror), None
        if tar is not None:
            images.archive(name, tar)
        try:
            image = images.import_image(name)
        except (images.NoEngine, MissingExtra) as problem:
            print(f"{name}: not handed to a container engine: {problem.message}")
    if as_json:
        write_json({"name": name, "rootfs": rootfs, "archive": tar, "image": image})


def _list_images(as_json: bool) -> None:
    found = [
        {"name": image.name, "built": images.is_built(image), "rootfs": images.place_of(image)}
        for image in map(images.image_named, images.image_names())
    ]
    if as_json:
        return write_json(found)
    for each in found:
        print(f"{each['name']:10} {'built' if each['built'] else 'not built':10} {each['rootfs']}")


@app.command("unpack")
def unpack_command(
    image: Annotated[str, typer.Argument(help="An image of the container engine.")], as_json: Json = False
) -> None:
    """Unpack an image of the container engine for `namespace`, as it is."""
    with progress():
        rootfs = engine_images.unpack(image)
    if as_json:
        write_json({"name": image, "rootfs": rootfs})


@app.command("gc")
def gc_command(
    dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    backend: Annotated[str | None, typer.Option(help="Only this backend; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Remove leftovers of killed drivers: processes, control groups, folders, containers."""
    told: list[dict[str, Any]] = []
    for name in [backend] if backend else BACKENDS.built_in:
        try:
            found = asyncio.run(_gc(name, dry))
        except AgentRLError as error:
            if backend:
                raise
            told.append({"backend": name, "found": [], "skipped": error.message})
            print(f"{name}: skipped: {error.message}")
            continue
        told.append({"backend": name, "found": found, "skipped": None})
        for line in _by_kind(found):
            print(f"{name}: {'would remove' if dry else 'removed'} {line}")
        if not found:
            print(f"{name}: nothing is left behind")
    if as_json:
        write_json(told)


def _by_kind(found: list[str]) -> list[str]:
    """Formats what `Backend.reap` found: a line per kind, with the first few names."""
    kinds: dict[str, list[str]] = {}
    for each in found:
        kind = "control group" if each.startswith("control group ") else each.split(" ")[0]
        kinds.setdefault(kind, []).append(each[len(kind) + 1 :])
    lines = []
    for kind, names in kinds.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        plural = "" if len(names) == 1 else "es" if kind.endswith("s") else "s"
        lines.append(f"{len(names)} {kind}{plural}: {', '.join(names[:_SHOWN])}{more}")
    return lines


async def _gc(name: str, dry: bool) -> list[str]:
    backend = open_backend(name)
    try:
        return await backend.reap(dry=dry)
    finally:
        await backend.close()


def _spec(image: str | None, rootfs: str | None) -> SandboxSpec:
    return SandboxSpec(image=image, rootfs=rootfs)
