"""A model fetched by a process of its own, for one that must have no threads yet or may not reach a network.

Run as a module it is that process: it prints one line, the path or what is wrong, as JSON.
"""

import json
import subprocess
import sys
from pathlib import Path

from llmsrv.weights.child import module_command
from llmsrv.weights.fetch import FetchError, resolve_model
from llmsrv.weights.progress import FetchProgress


def fetch_apart(model: str) -> Path:
    """As resolve_model(). Its progress is shown on standard error."""
    command = module_command("llmsrv.weights.fetch_apart", model)
    child = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        raise FetchError(f"model {model!r} could not be fetched: the process that does it ended too early") from None
    if "error" in answer:
        raise FetchError(answer["error"])
    return Path(answer["path"])


def main() -> None:
    """Entry point of the process."""
    try:
        with FetchProgress() as progress:
            answer = {"path": str(resolve_model(sys.argv[1], progress=progress))}
    except (ValueError, OSError, ImportError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
