"""`agentrl`: the command line."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

import agentrl
from agentrl.commands.arguments import Profile, RecipeName, Set
from agentrl.commands.environment import app as environments
from agentrl.commands.output import (
    Json,
    is_terminal,
    progress,
    restore_standard_output,
    show_log,
    write_all,
    write_json,
    write_line,
)
from agentrl.commands.program import app as programs
from agentrl.commands.recipe import app as recipes
from agentrl.commands.sandbox import app as sandboxes
from agentrl.commands.search import app as searches
from agentrl.store.full_disk import REMEDY, is_of_a_full_disk
from agentrl.types.errors import AgentRLError, RankDied, raised_by
from agentrl.view.terminal import visible


class Commands(TyperGroup):
    """All commands. Ctrl-C ends each of them with one line."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            print(str(stopped) or "stopped", file=sys.stderr)
            raise SystemExit(130) from None


OF_STAGE = "Only the episodes of this stage, with its rewards and credit; required if several stages have episodes."

FORK_SCRIPT = "A script of the recipe that plays on; default: what played the episode."
KEPT = "last, best (train.keep.best) or an iteration"
FORK_CHECKPOINT = f"The policy that plays on: {KEPT}, or a folder; default: the last of the run."
CHANGED_CODE = "Resume although code in the recipe's folder has changed since the run."

app = typer.Typer(
    name="agentrl",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Multi-turn agentic reinforcement learning. Start with: agentrl quickstart",
)
app.add_typer(recipes, name="recipe")
app.add_typer(environments, name="env")
app.add_typer(programs, name="program")
app.add_typer(sandboxes, name="sandbox")
app.add_typer(searches, name="search")


Out = Annotated[Path | None, typer.Option("--out", help="Run directory; the same one continues the run.")]
Run = Annotated[Path, typer.Argument(help="A run directory.")]
Replay = Annotated[
    Path | None,
    typer.Option("--replay", metavar="RUN", help="Repeat the completions of a stored run, with live tools."),
]


RESTARTS = "AGENTRL_RESTARTS"
"""Environment variable: how often this command has restarted itself."""


def _print_version(asked: bool) -> None:
    if asked:
        print(f"agentrl {agentrl.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Receives the options that stand before a command."""


@app.command()
def quickstart(
    compare: Annotated[bool, typer.Option(help="Compare GRPO, discounted GRPO and GiGPO over seeds.")] = False,
    seeds: Annotated[int, typer.Option(help="With --compare: how many seeds.")] = 5,
    seed: Annotated[int, typer.Option(help="Without --compare: the seed.")] = 0,
    jobs: Annotated[int, typer.Option(help="With --compare: runs at the same time.")] = 2,
    out: Out = None,
    as_json: Json = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """A tiny policy learns, on this CPU, to find its way through real folders with a real shell."""
    from agentrl.commands import quickstart as command

    if compare:
        command.compare(seeds, jobs, out or Path("runs/compare"), overrides, as_json=as_json)
    else:
        command.quickstart(seed, out, overrides, as_json=as_json)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the recipe and of its folder.")],
    like: Annotated[
        str,
        typer.Option(
            help="calls: functions and a user; dialogue: a simulated user who is asked; game: moves are text; "
            "picture: clicks on images; program: an agent that exists; qa: JSON lines; repair: a sandbox; "
            "roles: two agents in an episode."
        ),
    ] = "game",
    package: Annotated[
        bool, typer.Option("--package", help="A Python package, for `pip install`, with a test.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a small environment that works as it is, to start your own from."""
    from agentrl.commands.init import KINDS, new_package, new_recipe

    files = (new_package if package else new_recipe)(name, like, Path())
    if as_json:
        write_json({"files": files, "about": KINDS[like]})
        return
    for path in files:
        print(path)
    print(f"{KINDS[like]}\n\nNext:" + (f"\n  pip install -e {name}" if package else ""))
    print(f"  agentrl env check {name}\n  agentrl rollout {name} --script oracle --n 4")


@app.command()
def rollout(
    recipe: RecipeName,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Episodes.")] = 64,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    script: Annotated[str | None, typer.Option(help="A script of the recipe (oracle, random, ...).")] = None,
    replay: Replay = None,
    out: Out = None,
    as_json: Json = False,
    profile: Profile = None,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Collect episodes. The same command again adds only the missing ones."""
    from agentrl.api.rollout import rollout as command
    from agentrl.api.run_dirs import require_whole
    from agentrl.commands.look import print_summary

    done = command(
        recipe, n, overrides=overrides, profile=profile, group_size=group_size, script=script, replay=replay, out=out
    )
    print_summary(done.path, as_json=as_json)
    require_whole(done.path)


@app.command()
def train(
    recipe: RecipeName,
    replay: Replay = None,
    from_run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Train on the episodes of a stored run, without new rollouts."),
    ] = None,
    passes: Annotated[int, typer.Option(min=1, help="With --from: how often each group trains.")] = 1,
    out: Out = None,
    as_json: Json = False,
    profile: Profile = None,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Train. The same command again continues an interrupted run."""
    from agentrl.api.run_dirs import require_whole
    from agentrl.api.train import train as command
    from agentrl.commands.look import print_summary

    try:
        done = command(
            recipe, overrides=overrides, profile=profile, out=out, replay=replay, from_run=from_run, passes=passes
        )
    except RankDied as died:
        _restart(died)
        raise
    if done is not None:
        print_summary(done.path, as_json=as_json)
        require_whole(done.path)


@app.command()
def eval(
    what: Annotated[str, typer.Argument(help="A recipe, a training run, or a checkpoint folder.")],
    n: Annotated[int | None, typer.Option("--n", "-n", min=1, help="Episodes; default: the recipe's.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", min=1, help="Tries of each task: pass@k and pass^k.")] = None,
    by: Annotated[
        str | None, typer.Option(help="A field of the tasks' data, such as source: a table by its values.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help=f"Of a run: {KEPT}; default: last.")] = None,
    out: Out = None,
    as_json: Json = False,
    profile: Profile = None,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Evaluate a policy on fresh episodes."""
    from agentrl.api.eval import eval as command
    from agentrl.api.run_dirs import require_whole
    from agentrl.commands.evaluation import evaluation
    from agentrl.commands.look import print_summary

    done = command(what, n, k=k, by=by, checkpoint=checkpoint, overrides=overrides, profile=profile, out=out)
    path, metrics = done.path, done.metrics[-1]
    if as_json:
        write_json({"run": path, **metrics})
    else:
        write_all(evaluation(metrics))
        print_summary(path, as_json=False)
    require_whole(path)


@app.command()
def rescore(
    run: Run,
    recipe: Annotated[str | None, typer.Option(help="The recipe with the rewards; default: that of the run.")] = None,
    name: Annotated[str, typer.Option(help="Name under which the new scores are stored.")] = "again",
    stage: Annotated[str | None, typer.Option(help=OF_STAGE)] = None,
    as_json: Json = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Score a stored run again, without new rollouts. The recorded scores stay as they are."""
    from agentrl.api.rescore import require_all_scored
    from agentrl.api.rescore import rescore as command
    from agentrl.commands.rescore import print_comparison

    with progress() as told:
        result = command(run, recipe, name=name, stage=stage, overrides=overrides, reporters=[told])
    write_json(result) if as_json else print_comparison(result, run, name)
    require_all_scored(result, run)


@app.command()
def credit(
    run: Run,
    estimator: Annotated[
        str | None,
        typer.Option(help="A built-in name or ./task.py:mine; several with commas between; default: that of the run."),
    ] = None,
    stage: Annotated[str | None, typer.Option(help=OF_STAGE)] = None,
    rewards: Annotated[
        str | None, typer.Option(help="The scores that `agentrl rescore` stored under this name.")
    ] = None,
    episode: Annotated[str | None, typer.Option(help="Show only this one: an id, or a part of it.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Show only this iteration; the first is 0.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of episodes; 0: a summary. --json shows all.")] = 10,
    save: Annotated[bool, typer.Option(help="Store the credit in the run, for `show` and `view`.")] = False,
    as_json: Json = False,
    overrides: Annotated[list[str], typer.Option("--set", help="A setting: --set gamma=0.9", metavar="KEY=VALUE")] = [],  # noqa: B006
) -> None:
    """Compute the credit of every turn of a stored run again. Without --save nothing is written."""
    from agentrl.api.credit import credit as command
    from agentrl.commands.credit import print_credit

    names = [None] if estimator is None else [name.strip() for name in estimator.split(",")]
    if "" in names or len({*names}) < len(names):
        raise typer.BadParameter(
            f"--estimator {estimator}: different names with commas between, for example grpo,gigpo"
        )
    if len(names) > 1 and (save or overrides):
        raise typer.BadParameter("--save and --set are for one estimator")
    how: dict[str, Any] = {"overrides": overrides, "stage": stage, "rewards": rewards, "save": save}
    with progress() as told:
        results = [command(run, name, **how, reporters=[told]) for name in names]
    if episode is not None:
        results = [result.only(episode) for result in results]
    results = results if iteration is None else [result.of_iteration(iteration) for result in results]
    if as_json:
        write_json(results[0].as_dict() if len(results) == 1 else [result.as_dict() for result in results])
    else:
        print_credit(results, limit)


@app.command()
def fork(
    run: Run,
    episode: Annotated[str, typer.Argument(help="An episode id, or a part of it.")],
    turn: Annotated[int, typer.Option(help="The first turn that is sampled again; the first of all is 0.")],
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Episodes.")] = 8,
    script: Annotated[str | None, typer.Option(help=FORK_SCRIPT)] = None,
    checkpoint: Annotated[str | None, typer.Option(help=FORK_CHECKPOINT)] = None,
    changed_code: Annotated[bool, typer.Option("--changed-code", help=CHANGED_CODE)] = False,
    out: Out = None,
    as_json: Json = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Resume a stored episode from one of its turns, n times. The turns before it are played back from the record."""
    from agentrl.api.forks.fork import fork as command
    from agentrl.api.run_dirs import require_whole
    from agentrl.commands.look import print_summary

    done = command(
        run, episode, turn, n, script=script, checkpoint=checkpoint, changed_code=changed_code, out=out,
        overrides=overrides,
    )  # fmt: skip
    print_summary(done.path, as_json=as_json)
    require_whole(done.path)


@app.command()
def probe(
    run: Run,
    episode: Annotated[str | None, typer.Argument(help="An id, or a part of it; without it, several count.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=2, help="Episodes per turn.")] = 16,
    estimator: Annotated[
        str | None,
        typer.Option(help="A name or ./task.py:mine; default: that of the run. Without EPISODE: a,b; default: all."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Without EPISODE: how many are measured.")] = 8,
    plot: Annotated[Path | None, typer.Option(help="Of an episode, also draw it: a .svg or .png file.")] = None,
    script: Annotated[str | None, typer.Option(help=FORK_SCRIPT)] = None,
    checkpoint: Annotated[str | None, typer.Option(help=FORK_CHECKPOINT)] = None,
    changed_code: Annotated[bool, typer.Option("--changed-code", help=CHANGED_CODE)] = False,
    out: Out = None,
    as_json: Json = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Measure what each turn of an episode was worth, by resuming before every turn, and compare it with the credit.
    Without an episode, say which estimator's credit agrees best with the worth of turns.
    """
    from agentrl.commands.probe import probe as command

    how = {"script": script, "checkpoint": checkpoint, "changed_code": changed_code, "overrides": overrides, "out": out}
    command(run, episode, n, estimator=estimator, episodes=episodes, plot=plot, as_json=as_json, **how)


@app.command()
def export(
    run: Run,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Of a checkpoint: a new folder, or hf:NAME, a repository of the Hugging Face Hub. Of episodes: "
            "openai, sharegpt, atif or inspect.",
        ),
    ],
    checkpoint: Annotated[str, typer.Option(help=f"{KEPT}.")] = "last",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Of a training with LoRA, the adapters alone; default: merged weights.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="With hf:NAME, anybody may read it; default: private.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Of episodes: a new file; of atif, a new folder.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only its episodes; required if several stages have some.")] = None,
    split: Annotated[str | None, typer.Option(help="Only train, eval, demo or rollout; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a plain model with a card, or the episodes of a run in the format of another tool."""
    from agentrl.api.export.export import export as command
    from agentrl.commands.export import print_export

    done = command(run, to, checkpoint=checkpoint, adapter=adapter, public=public, out=out, stage=stage, split=split)
    write_json(done) if as_json else print_export(to, done)


@app.command("list")
def list_plug_ins(
    kind: Annotated[str | None, typer.Argument(help="tools, estimators, ...; default: the kinds.")] = None,
    as_json: Json = False,
) -> None:
    """List the plug-ins of a kind, built-ins and those of packages: what can be set about each, where its code is."""
    from agentrl.commands import plug_ins as command

    rows = command.kinds() if kind is None else command.plug_ins(kind)
    write_json(rows) if as_json else command.print_rows(rows)


@app.command()
def serve(recipe: RecipeName, overrides: Set = []) -> None:  # noqa: B006
    """Start the vLLM servers of a recipe and keep them until Ctrl-C."""
    from agentrl.api.serve import serve as command

    command(recipe, overrides, note=write_line)


@app.command()
def simulate(
    pipeline: Annotated[Path, typer.Argument(help="YAML file: the costs of a run in seconds (docs/simulator.md).")],
    times: Annotated[str, typer.Option(help="Factors for the size of the pipeline, one line each: 1,8,64")] = "1",
    as_json: Json = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Predict the throughput of a training run, up to a thousand GPUs, from measured costs."""
    from agentrl.commands.simulate import print_predictions
    from agentrl.simulate.pipeline_file import simulate as command

    if not all(factor.strip().isdigit() for factor in times.split(",")):
        raise typer.BadParameter(f"--times {times}: numbers with commas between, for example 1,8,64")
    predictions = command(pipeline, overrides, [int(factor) for factor in times.split(",")])
    write_json(predictions) if as_json else print_predictions(predictions)


@app.command()
def proxy(
    recipe: RecipeName,
    out: Out = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8300,
    idle_s: Annotated[float, typer.Option(help="Seconds without a request after which a session ends.")] = 600.0,
    name: Annotated[list[str], typer.Option(help="A public name of this machine that programs ask for.")] = [],  # noqa: B006
    overrides: Set = [],  # noqa: B006
) -> None:
    """Record any agent program: it talks to this URL as to the OpenAI API, and each session becomes an episode."""
    from agentrl.api.proxy import proxy as command

    command(recipe, overrides=overrides, out=out, host=host, port=port, idle_s=idle_s, names=name, note=write_line)


@app.command()
def check(run: Run, as_json: Json = False) -> None:
    """Verify a run directory's invariants. Exit code 1 if one does not hold."""
    from agentrl.commands import look

    sys.exit(look.check(run, as_json=as_json))


@app.command()
def show(
    run: Run,
    episode: Annotated[str | None, typer.Argument(help="An episode id, or a part of it.")] = None,
    tokens: Annotated[bool, typer.Option(help="The tokens, coloured by mask and log-probability.")] = False,
    whole: Annotated[bool, typer.Option(help="Long messages of prompts in full.")] = False,
    status: Annotated[str | None, typer.Option(help="Only episodes of this status.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Only episodes of this split: train, eval, demo. Default: all but demonstrations."),
    ] = None,
    iteration: Annotated[int | None, typer.Option(help="Only episodes of this iteration; the first is 0.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only episodes with at least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only episodes with at most this reward.")] = None,
    sort: Annotated[
        str, typer.Option(help="Sort by a column: reward, turns, ...; docs/terminal.md lists them.")
    ] = "created_at",
    desc: Annotated[bool, typer.Option("--desc", help="Sort descending: the largest, or the latest, first.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of episodes, or tasks, to list.")] = 20,
    tasks: Annotated[bool, typer.Option("--tasks", help="List tasks: the lowest mean reward first.")] = False,
    as_json: Json = False,
) -> None:
    """Look at a run, or at one episode, in the terminal."""
    from agentrl.commands import look

    if episode is not None:
        look.show_one(run, episode, tokens=tokens, whole=whole, as_json=as_json)
    else:
        look.show(
            run, as_json, tasks, status=status, split=split, iteration=iteration, min_reward=min_reward,
            max_reward=max_reward, sort=sort, desc=desc, limit=limit,
        )  # fmt: skip


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="A run directory.")],
    b: Annotated[Path, typer.Argument(help="The run to compare it with.")],
    split: Annotated[
        str | None, typer.Option(help="Of the tasks to compare; default: evaluation, else rollout, else training.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of tasks to show.")] = 20,
    as_json: Json = False,
) -> None:
    """Compare two runs: settings that differ, tasks won and lost, metrics side by side."""
    from agentrl.commands import compare

    compare.diff(a, b, split=split, limit=limit, as_json=as_json)


@app.command()
def plot(
    run: Run,
    metric: Annotated[
        list[str], typer.Option(help="A metric to plot; may be given again. Default: those of the live display.")
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a picture instead (.png, .svg, .pdf): of each --metric; without one, the learning curve."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plot the metrics of a run in the terminal, or as a picture."""
    from agentrl.commands import compare

    compare.plot(run, metrics=metric, out=out, as_json=as_json)


@app.command()
def top(run: Run) -> None:
    """Watch a run in the terminal: curves, episodes in flight, sandboxes, engines, failures. Also a finished one."""
    from agentrl.types.errors import needs

    if not is_terminal():
        raise AgentRLError("agentrl top needs a terminal", remedy=f"agentrl show {run} prints a summary")
    with needs("top"):
        from agentrl.commands.top import Top
    Top(run).run()


@app.command()
def view(
    run: Annotated[Path, typer.Argument(help="A run directory, or a folder that holds some.")],
    export: Annotated[
        Path | None, typer.Option(help="Write one page of a run to this file, and serve nothing.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="With --export: maximum number of episodes on the page.")] = 200,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8400,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
    as_json: Json = False,
) -> None:
    """Look at runs in a browser, also while they are written: curves, episodes, turns, tokens, rewards, credit."""
    from agentrl.commands import view as command

    if export is not None:
        command.export(run, export, episodes, as_json=as_json)
    else:
        command.view(run, host, port, opens=opens, as_json=as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show what works on this machine, and the command that fixes what does not."""
    from agentrl.commands import doctor as command

    findings = command.examine()
    if as_json:
        write_json(findings)
        return
    table = Table("", "what", "found", "fix", box=None)
    for finding in findings:
        said = (
            Text(text) for text in (finding.what, finding.found, finding.fix)
        )  # 'agentrl-framework[train]' is no markup
        table.add_row("[green]ok[/]" if finding.ok else "[red]no[/]", *said)
    Console().print(table)


def _restart(died: RankDied) -> None:
    """Replaces this process by the same command; returns if no restart is left.

    A new process, because collectives that wait for the dead rank, and GPU memory, end with the old one.
    """
    restarts = int(os.environ.get(RESTARTS, "0"))
    if restarts < died.restarts:
        print(f"{died.place}: {died.message}\nrestarting from the last checkpoint", file=sys.stderr, flush=True)
        os.environ[RESTARTS] = str(restarts + 1)
        restore_standard_output()
        os.execv(sys.executable, [sys.executable, "-m", "agentrl.cli", *sys.argv[1:]])


def main() -> None:
    """Runs the command line; errors that agentrl raises on purpose are printed without a traceback."""
    sys.path.insert(0, str(Path.cwd()))  # so that pkg.mod:Name finds packages of the current folder
    # A shell script that starts a command in the background makes it ignore SIGINT, and Python keeps that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    show_log()
    try:
        app(prog_name="agentrl")  # also as `python -m agentrl.cli`: completion goes by the name
    except AgentRLError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as error:
        if not (place := raised_by(error)):
            raise
        # User code outside of episodes (a curriculum, credit, a loss). Interrupted work must not look finished.
        print(visible(f"error: {place}: sys.exit({error.code!r})\n  -> raise an exception instead"), file=sys.stderr)
        sys.exit(1)
    except (OSError, sqlite3.Error) as error:
        if is_of_a_full_disk(error):
            print(visible(f"error: the disk is full: {error}\n  -> {REMEDY}"), file=sys.stderr)
            sys.exit(1)
        if not isinstance(error, OSError) or error.filename is None:
            raise
        print(visible(f"error: {error.filename}: {error.strerror}"), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
