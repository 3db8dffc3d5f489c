"""Tasks at a terminal: files that a template makes of random numbers and words, and what must lie there in the end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterator

from agentrl import Message, Say, Task

Made = tuple[str, dict[str, str], dict[str, str | None], str]
"""What is asked; the files at the start; the files in the end (None: there is none); commands that do it."""

_NAMES = ("anna", "boris", "carla", "deniz", "emil", "farah", "goran", "hana", "ivo", "jana", "kofi", "lena")
_CITIES = ("oslo", "quito", "hanoi", "lima", "accra", "turin", "izmir", "perth")
_WORDS = ("apple", "stone", "river", "cloud", "paper", "glass", "metal", "sugar", "lemon", "chalk", "amber", "maple")


def tasks(n: int = 512, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """`n` tasks, every kind in turn. A smaller `n` gives the beginning of the same list.

    Args:
        held_out: those for evaluation: other random numbers.
    """
    for index in range(n):
        kind = [*KINDS][index % len(KINDS)]
        rng = random.Random(f"{'held out' if held_out else 'train'} {seed} {index}")
        text, files, end, commands = KINDS[kind](rng)
        state = [
            {"file": path, **({"absent": True} if held is None else {"equals": held})} for path, held in end.items()
        ]
        yield Task.of(f"{kind}-{index}", text, sandbox={"files": files}, state=state, commands=commands)


def _log(rng: random.Random) -> list[str]:
    levels = ("INFO", "INFO", "WARN", "ERROR", "DEBUG")
    return [
        f"2031-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} {rng.choice(levels)} {rng.choice(_NAMES)} "
        f"{rng.choice(_WORDS)} took {rng.randint(1, 900)} ms"
        for _ in range(rng.randint(60, 200))
    ]


def count(rng: random.Random) -> Made:
    lines, level, name = _log(rng), rng.choice(("WARN", "ERROR", "DEBUG")), rng.choice(_NAMES)
    number = sum(f" {level} {name} " in line for line in lines) + 100 * rng.randint(1, 9)
    more = [f"2031-01-01 {level} {name} again took 1 ms"] * (number - sum(f" {level} {name} " in x for x in lines))
    text = f"How many lines of app.log have the level {level} and the user {name}? Write the number to count.txt."
    return (
        text,
        {"app.log": _file(lines + more)},
        {"count.txt": str(number)},
        f"grep -c ' {level} {name} ' app.log > count.txt",
    )


def total(rng: random.Random) -> Made:
    rows = [(rng.choice(_CITIES), rng.choice(_WORDS), rng.randint(1, 500)) for _ in range(rng.randint(40, 120))]
    city = rows[0][0]
    value = sum(amount for place, _, amount in rows if place == city)
    text = f"sales.csv holds city, product and amount. Write the sum of the amounts of {city} to total.txt."
    lines = ["city,product,amount", *(",".join(map(str, row)) for row in rows)]
    return (
        text,
        {"sales.csv": _file(lines)},
        {"total.txt": str(value)},
        (f"awk -F, '$1 == \"{city}\" {{s += $3}} END {{print s}}' sales.csv > total.txt"),
    )


def rename(rng: random.Random) -> Made:
    names = rng.sample(_WORDS, rng.randint(3, 6))
    old, new = rng.sample(["txt", "md", "dat", "bak", "csv"], 2)
    files = {f"notes/{name}.{old}": f"{name} {rng.random()}\n" for name in names}
    end: dict[str, str | None] = dict.fromkeys(files)
    end |= {path.rpartition(".")[0] + f".{new}": held for path, held in files.items()}
    text = f"Rename all files in notes/ that end with .{old}: they are to end with .{new}. Leave their contents."
    return text, files, end, f'for f in notes/*.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done'


def largest(rng: random.Random) -> Made:
    names = rng.sample(_WORDS, 6)
    sizes = rng.sample(range(50, 3000), 6)
    files = {
        f"data/{rng.choice(_CITIES)}/{name}.txt": "x" * size + "\n" for name, size in zip(names, sizes, strict=True)
    }
    path = max(files, key=lambda each: len(files[each]))
    text = "Which file below data/ is the largest? Write its path, beginning with data/, to largest.txt."
    return (
        text,
        files,
        {"largest.txt": path},
        ("find data -type f -printf '%s %p\\n' | sort -n | tail -1 | cut -d' ' -f2 > largest.txt"),
    )


def names(rng: random.Random) -> Made:
    lines = [f"{rng.choice(_NAMES)} {rng.choice(_WORDS)}" for _ in range(rng.randint(30, 90))]
    text = "people.txt has lines with repetitions. Write every line once, sorted, to sorted.txt."
    return (
        text,
        {"people.txt": _file(lines)},
        {"sorted.txt": _file(sorted(set(lines)))},
        ("LC_ALL=C sort -u people.txt > sorted.txt"),
    )


def replace(rng: random.Random) -> Made:
    old, new, *others = rng.sample(_WORDS, 6)
    files = {
        f"pages/{name}.{kind}": _file([" ".join(rng.choices([old, *others], k=6)) for _ in range(8)])
        for name, kind in zip(rng.sample(_NAMES, 5), ("html", "html", "html", "txt", "txt"), strict=True)
    }
    end: dict[str, str | None] = {p: h.replace(old, new) if p.endswith("html") else h for p, h in files.items()}
    text = f"In all .html files in pages/, replace the word {old} by {new}. Leave the other files as they are."
    return text, files, end, f"sed -i 's/{old}/{new}/g' pages/*.html"


def extract(rng: random.Random) -> Made:
    people = [{"name": name, "age": rng.randint(18, 80), "city": rng.choice(_CITIES)} for name in _NAMES]
    rng.shuffle(people)
    age = rng.randint(30, 60)
    found = sorted(str(each["name"]) for each in people if int(str(each["age"])) > age) or ["nobody"]
    text = (
        f"people.json is a list of people. Write the names of those older than {age}, sorted, one a line, to old.txt; "
        "if there are none, write nobody."
    )
    program = (
        "import json; p = json.load(open('people.json')); "
        f"print(*sorted(e['name'] for e in p if e['age'] > {age}) or ['nobody'], sep=chr(10))"
    )
    return text, {"people.json": json.dumps(people)}, {"old.txt": _file(found)}, f'python3 -c "{program}" > old.txt'


def remove(rng: random.Random) -> Made:
    word = rng.choice(_WORDS)
    files = {
        f"logs/{name}.log": _file(["start", word if number % 2 else "nothing", f"end {rng.random()}"])
        for number, name in enumerate(rng.sample(_NAMES, 6))
    }
    end: dict[str, str | None] = {p: None if f"\n{word}\n" in held else held for p, held in files.items()}
    return (
        f"Delete the files in logs/ that contain the word {word}. Leave the others.",
        files,
        end,
        (f"grep -l {word} logs/*.log | xargs rm"),
    )


def join(rng: random.Random) -> Made:
    parts = rng.randint(3, 6)
    files = {
        f"parts/{k + 1}.txt": _file([f"{rng.choice(_WORDS)} {rng.random()}" for _ in range(4)]) for k in range(parts)
    }
    whole = "".join(files[f"parts/{k}.txt"] for k in range(parts, 0, -1))
    text = f"Join the files parts/1.txt to parts/{parts}.txt, the last one first, into whole.txt."
    return text, files, {"whole.txt": whole}, f"cat $(seq -f 'parts/%g.txt' {parts} -1 1) > whole.txt"


def setting(rng: random.Random) -> Made:
    keys = rng.sample(_WORDS, 6)
    held = {key: rng.randint(1, 99) for key in keys}
    key, value = keys[rng.randrange(6)], rng.randint(100, 999)
    lines = ["# settings", *(f"{k} = {v}" for k, v in held.items())]
    end = ["# settings", *(f"{k} = {value if k == key else v}" for k, v in held.items())]
    text = f"Set {key} to {value} in app.conf. Change nothing else."
    return (
        text,
        {"app.conf": _file(lines)},
        {"app.conf": _file(end)},
        f"sed -i 's/^{key} = .*/{key} = {value}/' app.conf",
    )


def _file(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


KINDS: dict[str, Callable[[random.Random], Made]] = {
    "count": count, "total": total, "rename": rename, "largest": largest, "names": names, "replace": replace,
    "extract": extract, "remove": remove, "join": join, "setting": setting,
}  # fmt: skip


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Looks around, and runs the commands that do it."""
    yield Say(calls=[("shell", {"command": "ls"})])
    yield Say(calls=[("shell", {"command": task.data["commands"]})])
    yield Say("Done.")


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Counts, sorts or copies any file into one that the task may ask for."""
    for _ in range(rng.randint(1, 3)):
        done = rng.choice(["wc -l < {}", "sort {}", "cat {}", "head -3 {}"])
        into = rng.choice(["count.txt", "total.txt", "sorted.txt", "largest.txt", "whole.txt", "old.txt"])
        command = done.format("$(find . -type f | shuf -n 1)")
        yield Say(calls=[("shell", {"command": f"{command} > {into}"})])
    yield Say("Done.")


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Runs what is no command, or does nothing."""
    yield Say(
        calls=[("shell", {"command": rng.choice(["no-such-program", "exit 0", "true", "cat < /dev/null", "((("])})]
    )
    yield Say("It is all done.")
