"""The `compile` tool in a real sandbox, with real compilers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.tools.builtin.compile import Compile
from agentrl.tools.methods import toolbox
from agentrl.types.errors import RecipeError
from agentrl.types.sandbox import SandboxSpec
from agentrl.types.task import Task

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler: make programs, as root")

SUM = '#include <stdio.h>\nint main(){int a,b; if(scanf("%d %d",&a,&b)!=2) return 3; printf("%d\\n",a+b); return 0;}'
TASK = Task.of("sum", "Add.")


async def opened(sandbox: NamespaceSandbox, **settings: Any) -> Compile:
    made = Compile(**settings)
    await made.open(TASK, sandbox)
    return made


@pytest.mark.slow
async def test_a_program_is_compiled_and_gets_its_input(sandbox: NamespaceSandbox) -> None:
    made = await opened(sandbox, language="c")
    assert await made.compile_and_run(SUM, "2 40\n") == "42"
    assert await made.compile_and_run(SUM) == "[program: exit code 3]"
    assert await made.compile_and_run("int main(){return 0;}") == "[no output]"
    assert (await sandbox.exec("./main; echo $?", cwd="program")).text == "0\n", "it stays for other tools"


@pytest.mark.slow
async def test_what_the_compiler_says_is_shown_and_no_older_program_runs(sandbox: NamespaceSandbox) -> None:
    made = await opened(sandbox, language="cpp")
    assert await made.compile_and_run('#include <iostream>\nint main(){std::cout << "ran";}') == "ran"
    wrong = await made.compile_and_run("int main(){ return missing; }")
    assert wrong.startswith("[it does not compile]\nmain.cpp: In function")
    assert "missing\u2019 was not declared" in wrong
    assert wrong.endswith("[compiler: exit code 1]")
    assert "ran" not in wrong
    warned = await made.compile_and_run('#include <cstdio>\nint main(){ int unused; puts("still"); }')
    assert "[-Wunused-variable]" in warned
    assert warned.endswith("\nstill")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "limit", "ending"),
    [
        ("for(;;);", 1, "[program: timed out after 1 s and was ended]"),
        ("int *p = 0; *(volatile int *)p = 1;", 300, "[program: ended by a signal, exit code 139]"),
        ('for(int i = 0; i < 100000; i++) puts("line");', 300, "line"),
    ],
)
async def test_programs_that_end_badly_are_told(sandbox: NamespaceSandbox, body: str, limit: int, ending: str) -> None:
    made = await opened(sandbox, language="c", timeout_s=limit, output_limit=400)
    shown = await made.compile_and_run(f"#include <stdio.h>\nint main(){{ {body} return 0; }}")
    assert shown.endswith(ending)
    assert len(shown) < 600


@pytest.mark.slow
async def test_any_language_can_be_given(sandbox: NamespaceSandbox) -> None:
    made = await opened(sandbox, file="main.py", build="python3 -m py_compile main.py", run="python3 main.py")
    assert await made.compile_and_run("print(input()[::-1])", "abc") == "cba"
    assert "SyntaxError" in await made.compile_and_run("print(")


@pytest.mark.slow
async def test_a_sandbox_without_the_compiler_is_an_error_of_the_recipe(backend: NamespaceBackend) -> None:
    box = await backend.create(SandboxSpec(), label="test")
    with pytest.raises(RecipeError, match=r"(?s)there is no nosuchc in the sandbox.*agentrl/swe"):
        await opened(box, file="a.x", build="nosuchc a.x", run="./a")


@pytest.mark.parametrize(
    "settings", [{}, {"language": "cobol"}, {"language": "c", "run": "./a"}, {"file": "a", "run": "b"}]
)
def test_settings_that_name_no_language_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"(?s)compile: language is .*c or cpp; or all of file, build and run"):
        Compile(**settings)


RECIPE = """
name: sums
tasks: ./task.py:sums
agent: {max_turns: 3, format: hermes}
tools: [{compile: {language: c}}]
rewards: {right: exact_match}
scripts: {oracle: ./task.py:oracle}
"""
CODE = """
from agentrl import Say, Task

def sums(n=3):
    for k in range(n):
        yield Task.of(f"sum{k}", f"What is {k} + 40?", answer=str(k + 40))

def oracle(task, rng, messages):
    code = '#include <stdio.h>\\nint main() { int a, b; scanf("%d %d", &a, &b); printf("%d", a + b); }'
    yield Say(calls=[("compile_and_run", {"code": code, "input": f"{task.id[3:]} 40"})])
    yield Say(f"<answer>{messages[-1]['content']}</answer>")
"""


@pytest.mark.slow
def test_a_recipe_uses_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "task.py").write_text(CODE)
    done = rollout(tmp_path, 3, script="oracle", out=tmp_path / "run", reporters=())
    assert [episode.reward for episode in done.dir.episodes()] == [1.0] * 3


def test_the_model_is_told_of_both_arguments() -> None:
    definition = toolbox([Compile("c")])["compile_and_run"].definition()["function"]
    assert list(definition["parameters"]["properties"]) == ["code", "input"]
    assert definition["parameters"]["required"] == ["code"]
