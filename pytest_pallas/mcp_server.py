"""``pytest-pallas mcp``: the commands as tools of a server of the Model Context Protocol.

``TOOLS`` is the table of them: a tool is a command line that writes JSON to a file. Each call runs
in a process of its own with a time limit, so that no kernel takes the server with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pallas_sim.errors import OptionError
from pytest_pallas import __version__
from pytest_pallas.workers.pool import do
from pytest_pallas.workers.process import WorkerSetup

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

#: What a process of a tool may take, in bytes.
_MEMORY = 8 * 2**30

#: Largest result in bytes: more would fill the context of a model.
_LARGEST = 200_000

#: Characters at the end of the output that a result has.
_OUTPUT = 4000

Kind = Literal["string", "integer", "number", "boolean", "array", "object"]


@dataclass(frozen=True)
class Parameter:
    """An argument of a tool.

    Attributes:
      name: its name.
      option: the option of the command line that it becomes; "" for a positional argument, which
        comes first. A list becomes a list with commas, an object JSON.
      about: what it means.
      kind: its type, in words of JSON Schema.
      required: whether a call must have it.
    """

    name: str
    option: str
    about: str
    kind: Kind = "string"
    required: bool = False

    def command_line(self, value: Any) -> list[str]:
        """Return the arguments of the command for a value."""
        if self.kind == "boolean":
            return [self.option] if value else []
        if self.kind == "array":
            value = ",".join(map(str, value))
        elif self.kind == "object":
            value = json.dumps(value)
        return [f"{self.option}={value}" if self.option else str(value)]


@dataclass(frozen=True)
class CommandTool:
    """A command as a tool.

    Attributes:
      name: of the tool.
      about: what it does, for the model that chooses it.
      command: the module that ``python -m`` runs, and its command.
      json: the option that names the file for the result.
      seconds: the time limit of a call that names none.
      facts: the field of the result that says what failed; where it is empty, the answer has the
        end of the output.
      statuses: what the exit statuses from 0 on mean.
      parameters: its arguments, besides ``folder`` and ``seconds``.
    """

    name: str
    about: str
    command: tuple[str, ...]
    json: str
    facts: str
    seconds: float
    statuses: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        parameters = (*self.parameters, *_COMMON)
        properties: dict[str, Any] = {}
        for parameter in parameters:
            properties[parameter.name] = {"type": parameter.kind, "description": parameter.about}
            if parameter.kind == "array":
                properties[parameter.name]["items"] = {"type": "string"}
        return {
            "type": "object",
            "properties": properties,
            "required": [parameter.name for parameter in parameters if parameter.required],
            "additionalProperties": False,
        }


_COMMON = (
    Parameter("folder", "", "the folder to run in; by default that of the server"),
    Parameter("seconds", "", "time limit of this call", "number"),
)

_STATUSES = ("passed", "failed", "usage error", "the judge failed")

_PYTEST_STATUSES = ("passed", "failed", "interrupted", "internal error", "usage error", "no tests")

_CALL = (
    Parameter("kernel", "", "FILE.py:FUNCTION, the function that calls the kernel", required=True),
    Parameter(
        "inputs",
        "--inputs",
        "the arrays of the call, as a failure's `inputs` has them: 'float32[8, 128], int32[3] = "
        "[3, 3, 2]'; values are drawn where none are given",
    ),
    Parameter("options", "--options", "keyword arguments of the function", "object"),
    Parameter("mesh", "--mesh", "axes of a mesh and their sizes, for mesh=", "object"),
    Parameter("target", "--target", "the chip, such as v6e or h100"),
    Parameter("seed", "--seed", "of drawn values, and of the order of events", "integer"),
)

#: The tools, in the order in which a model sees them.
TOOLS: tuple[CommandTool, ...] = (
    CommandTool(
        name="check",
        about="Run the tests of Pallas kernels: a test file, or every KernelSpec of a package. "
        "Returns counts and, of each failure, the smallest example that shows it, the worst "
        "element, the block and the lines of the kernel (docs/agents.md). After a change, run it "
        "with `replay` for that one example, then without for all.",
        command=("pytest",),
        json="--pallas-failures",
        facts="failures",
        seconds=300,
        statuses=_PYTEST_STATUSES,
        parameters=(
            Parameter("path", "", "a test file, a folder or a test's id; or give suite"),
            Parameter("suite", "--pallas-suite", "packages or modules with a KernelSpec", "array"),
            Parameter("backend", "--pallas-backend", "such as tpu-sim:v5e or gpu-sim", "array"),
            Parameter("checks", "--pallas-checks", "such as forward, gradient; or all", "array"),
            Parameter("profile", "--pallas-profile", "quick, ci or thorough"),
            Parameter("max_examples", "--pallas-max-examples", "examples a check", "integer"),
            Parameter("seed", "--pallas-seed", "of the draws", "integer"),
            Parameter("replay", "--pallas-replay", "`example` of a failure: run only that"),
            Parameter("witness", "--pallas-witness", "`witness` of a failure: run that order"),
            Parameter("keyword", "-k", "run tests whose names match this"),
        ),
    ),
    CommandTool(
        name="simulate",
        about="Run one call of a kernel on a simulated TPU or GPU. Returns races, deadlocks, "
        "accesses out of bounds and the like with lines, and the outputs.",
        command=("pytest_pallas", "simulate"),
        json="--json",
        facts="outcome",
        seconds=120,
        statuses=_STATUSES,
        parameters=(
            *_CALL,
            Parameter("witness", "--witness", "the order of events of a failure: run it again"),
        ),
    ),
    CommandTool(
        name="analyze",
        about="Analyze the grid and the blocks of a kernel without running it: parts that no "
        "program writes, blocks beyond an edge, unmasked sums. With compile, what its machine "
        "code costs on the chip.",
        command=("pytest_pallas", "analyze"),
        json="--json",
        facts="outcome",
        seconds=120,
        statuses=_STATUSES,
        parameters=(
            *_CALL,
            Parameter("compile", "--compile", "compile it, if the compiler is here", "boolean"),
        ),
    ),
    CommandTool(
        name="verify",
        about="Judge a kernel that somebody else wrote, whose code runs in a sandboxed process "
        "only: does a Pallas kernel do the work, is it right for hidden shapes, is it free of "
        "races. Returns a verdict of each stage, a score, and counterexamples (docs/judge.md).",
        command=("pytest_pallas", "verify"),
        json="--json",
        facts="stages",
        seconds=180,
        statuses=_STATUSES,
        parameters=(
            Parameter("kernel", "", "FILE.py:FUNCTION, the candidate", required=True),
            Parameter(
                "reference", "--reference", "FILE.py:FUNCTION, the same in jnp", required=True
            ),
            Parameter("inputs", "--inputs", "shapes, such as 'm k, k n'", required=True),
            Parameter("dtype", "--dtype", "of the arrays, such as bfloat16"),
            Parameter("target", "--target", "the chip, such as v6e or h100"),
            Parameter("seed", "--seed", "of the draws", "integer"),
            Parameter("hidden", "--hidden", "how many hidden calls", "integer"),
            Parameter("budget", "--budget", "seconds for the candidate", "number"),
        ),
    ),
    CommandTool(
        name="barriers",
        about="Find out which waits, signals, barriers and fences of a KernelSpec's kernel are "
        "needed, what goes wrong without each, and from how many devices on.",
        command=("pytest_pallas", "barriers"),
        json="--json",
        facts="rows",
        seconds=600,
        statuses=_STATUSES,
        parameters=(
            Parameter("spec", "", "FILE.py:NAME of a KernelSpec, or MODULE:NAME", required=True),
            Parameter("mesh", "--mesh", "the largest mesh, such as x=32"),
            Parameter("only", "--only", "no smaller meshes", "boolean"),
            Parameter("target", "--target", "the chip, such as v6e or h100"),
            Parameter("examples", "--examples", "calls for each mesh", "integer"),
            Parameter("seed", "--seed", "of the draws", "integer"),
        ),
    ),
)


def command_line(tool: CommandTool, arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``python -m`` and the module for a call.

    Raises:
      OptionError: a positional argument looks like an option.
    """
    positional: list[str] = []
    options: list[str] = []
    for parameter in tool.parameters:
        if parameter.name not in arguments:
            continue
        argv = parameter.command_line(arguments[parameter.name])
        if parameter.option:
            options += argv
        elif argv[0].startswith("-"):
            raise OptionError(f"{tool.name}: {parameter.name}={argv[0]!r} must not begin with -")
        else:
            positional += argv
    return [*tool.command[1:], *positional, *options]


def call_tool(
    tool: CommandTool, arguments: Mapping[str, Any], stopping: threading.Event | None = None
) -> tuple[dict[str, Any], bool]:
    """Run a tool in a process of its own.

    Args:
      tool: the tool.
      arguments: its arguments, of its schema.
      stopping: set when the result is not wanted any more.

    Returns:
      The result, plain JSON, and whether the tool could not answer: it was used wrongly, or its
      process did not end by itself.

    Raises:
      OptionError: an argument is wrong.
    """
    from pytest_pallas.isolate.supervise import preloads

    folder = Path(arguments.get("folder") or os.curdir).absolute()
    if not folder.is_dir():
        raise OptionError(f"{tool.name}: there is no folder {folder}")
    seconds = float(arguments.get("seconds", tool.seconds))
    if not seconds > 0:
        raise OptionError(f"{tool.name}: seconds={seconds:g} must be positive")
    job = {
        "argv": [tool.command[0], *command_line(tool, arguments)],
        "json": tool.json,
        "folder": str(folder),
        "largest": _LARGEST,
    }
    setup = WorkerSetup(
        name=tool.name,
        job=f"{tool.name} of {arguments.get('kernel') or arguments.get('path') or folder}",
        entry=f"{__name__}:run_command",
        memory_bytes=_MEMORY,
        preloads=(*preloads("tpu"), "pytest_pallas.backends.analyzing", __name__),
    )
    worker, result = do(
        None, setup, json.dumps(job).encode(), seconds, stopping or threading.Event()
    )
    if worker is not None:
        worker.end()
    output = result.output[-_OUTPUT:]
    if result.status != "done":
        return {"status": result.status, "message": result.message, "output": output}, True
    answer = json.loads(result.value)
    status = answer["exit_status"]
    known = status in range(len(tool.statuses))
    answer["status"] = tool.statuses[status] if known else f"exit status {status}"
    if answer["result"] is None and answer["status"] in ("passed", "failed"):
        answer["status"] = "no result"
    if answer["status"] != "passed" and not (answer["result"] or {}).get(tool.facts):
        answer["output"] = output
    return answer, answer["status"] not in ("passed", "failed")


def run_command(payload: bytes) -> bytes:
    """Run a command of ``TOOLS`` in this process, and return its exit status and its JSON."""
    job = json.loads(payload)
    os.chdir(job["folder"])
    # Bytecode of a file that is edited within the second would count as that of the new text.
    sys.dont_write_bytecode = True
    sys.path.insert(0, job["folder"])  # as `python -m` does
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "result.json"
        sys.argv = [*job["argv"], f"{job['json']}={file}"]
        status = 0
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        answer: dict[str, Any] = {"exit_status": status, "result": None}
        with contextlib.suppress(FileNotFoundError):
            size = file.stat().st_size
            if size > job["largest"]:
                answer["message"] = (
                    f"the result has {size} bytes, more than {job['largest']}: ask for less, such "
                    "as one test, one check or one backend"
                )
            else:
                answer["result"] = json.loads(file.read_text(encoding="utf-8"))
    return json.dumps(answer).encode()


# The server.


def add_parser(commands: Any) -> None:
    """Add the command ``mcp`` to the subparsers of an ``argparse.ArgumentParser``."""
    names = ", ".join(tool.name for tool in TOOLS)
    summary = "serve these commands to an agent, by the Model Context Protocol"
    description = f"Serve the tools {names} on stdin and stdout: see docs/agents.md."
    commands.add_parser("mcp", help=summary, description=description).set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until stdin ends.

    Raises:
      OptionError: the SDK is not installed.
    """
    del arguments
    server = make_server()
    import anyio
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with stdio_server() as (inbox, outbox):
            await server.run(inbox, outbox, server.create_initialization_options())

    anyio.run(serve)
    return 0


def make_server() -> Server[Any]:
    """Make the server, with a tool for each command of ``TOOLS``.

    Raises:
      OptionError: the SDK is not installed, or a version before 2 is.
    """
    try:
        import anyio
        import anyio.to_thread
        import jsonschema
        import mcp_types as types
        from mcp.server.lowlevel import Server
    except ImportError:
        raise OptionError(
            "mcp needs the SDK of the Model Context Protocol, version 2: "
            "pip install 'pytest-pallas[mcp]'"
        ) from None
    tools = {tool.name: tool for tool in TOOLS}
    at_once = anyio.CapacityLimiter(os.cpu_count() or 1)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        del context, params
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool.name, description=tool.about, input_schema=tool.schema)
                for tool in TOOLS
            ]
        )

    async def call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        del context
        stopping = threading.Event()
        arguments = params.arguments or {}
        try:
            tool = tools.get(params.name)
            if tool is None:
                raise OptionError(f"there is no tool {params.name!r}; there is {', '.join(tools)}")
            validator = jsonschema.Draft202012Validator(tool.schema)
            for problem in validator.iter_errors(arguments):
                at = "".join(f"{part}: " for part in problem.absolute_path)
                raise OptionError(f"{tool.name}: {at}{problem.message}")
            answer, failed = await anyio.to_thread.run_sync(
                call_tool, tool, arguments, stopping, abandon_on_cancel=True, limiter=at_once
            )
        except OptionError as error:
            answer, failed = {"status": "usage error", "message": str(error)}, True
        finally:
            stopping.set()
        text = types.TextContent(type="text", text=json.dumps(answer))
        return types.CallToolResult(content=[text], structured_content=answer, is_error=failed)

    return Server(
        "pytest-pallas",
        version=__version__,
        instructions="Finds mistakes in JAX Pallas kernels. Give absolute paths, or `folder`.",
        on_list_tools=list_tools,
        on_call_tool=call,
    )
