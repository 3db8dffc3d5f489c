"""Run by vLLM's own Python: `vllm_try.py FOLDER...` samples from each model and prints a line of JSON a folder.

vLLM is imported once; each model is loaded in a child of its own, so that one that fails spoils no other.
"""

import json
import os
import sys
import traceback

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}


def sample(folder: str) -> str:
    """`loads`, or `no: ` and the reason."""
    from vllm import LLM, SamplingParams

    try:
        model = LLM(folder, enforce_eager=True, max_model_len=256, dtype="bfloat16", disable_log_stats=True)
        asked = SamplingParams(max_tokens=4, ignore_eos=True)
        (said,) = model.generate([{"prompt_token_ids": [3, 4, 5]}], asked, use_tqdm=False)
    except Exception as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # pydantic's first line counts the errors only.
        told = [line for line in lines if "validation error for" not in line] or [_failing_line(error)]
        return f"no: {told[0].partition(' [type=')[0]}"
    return "loads" if len(said.outputs[0].token_ids) == 4 else "no: it samples fewer tokens than asked for"


def _failing_line(error: Exception) -> str:
    return f"{type(error).__name__}: {traceback.extract_tb(error.__traceback__)[-1].line}"


def main(folders: list[str]) -> None:
    """Tries them one after the other."""
    import vllm  # noqa: F401 - before the children are forked

    for folder in folders:
        if (child := os.fork()) == 0:
            print(json.dumps({"folder": folder, "result": sample(folder)}), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
