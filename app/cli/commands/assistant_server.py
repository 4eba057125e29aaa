"""``mcp``: a server by which assistants ask for plans, over stdin and stdout (Model Context Protocol)."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
from typing import Any

from pydantic import TypeAdapter

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import EXIT_GOOD, MissingExtraError, SolverCrashError
from meshwright.app.base.quoting import terminal_lines
from meshwright.app.base.settings import SAFE_PATH, Settings
from meshwright.app.base.version import installed_version
from meshwright.app.cli.commands import assistant_tools
from meshwright.app.cli.commands.assistant_tools import READ, RESOURCES, SCHEME, TOOLS, answered
from meshwright.app.service.child import Children
from meshwright.app.service.sandbox import GRACE_S
from meshwright.costmodels.errors import InvalidInputError, MeshwrightError

INSTRUCTIONS = """\
Meshwright plans how large models train and serve on clusters: layout, predicted speed, latency, memory and cost.
Start with plan: {"request": {"model": "llama-3.1-8b", "gpus": "8xH100", "batch": 64, "seq": 4096}} trains,
{"request": {"model": "llama-3.1-8b", "gpus": "8xH100", "isl": 2000, "osl": 300, "rate": 4, "ttft_p95": "1s"}} serves.
compare asks several clusters, what_if one change, explain judges a launch command that exists, export writes one.
Where a page says --full, ask again with "full": true.
Figures are predictions: repeat them with their bands, and say the gap, the most by which the plan may miss the best one in
the searched space. "No plan" is an answer, with the constraint that fails; "undecided" is not: the search ran out of time."""


def run_mcp(settings: Settings) -> int:
    """Serve until stdin ends; raises MissingExtraError without the package ``mcp``."""
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtraError("Servers of the Model Context Protocol", package="mcp", extra="mcp")
    os.environ[SAFE_PATH] = "1"
    # An answer is text: no page in it has colours, whatever the client's terminal has.
    os.environ.pop("FORCE_COLOR", None)
    asyncio.run(_serve(settings))
    return EXIT_GOOD


def said(error: MeshwrightError) -> str:
    """Return what an assistant is told of an error, as the command line tells it."""
    ours = "internal error: " if isinstance(error, SolverCrashError) else ""
    return terminal_lines(f"{ours}{error}")


async def _serve(settings: Settings) -> None:
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.shared.exceptions import MCPError

    limit_s = settings.max_time_limit_s + GRACE_S
    children = Children(
        memory_bytes=settings.max_solve_memory_bytes,
        limit_s=limit_s,
        cpu_limit_s=int(limit_s) + 1,
        # Calls are answered one after another, and each has its time.
        wait_s=limit_s,
        also_loaded=(assistant_tools.__name__,),
    )

    async def ask(tool: str, arguments: dict[str, Any]) -> str:
        """Return the answer of a call; raises MeshwrightError."""
        length = len(compact_json(arguments))
        if length > settings.max_body_bytes:
            raise InvalidInputError(
                "the arguments are too long",
                given=f"{length} characters",
                allowed=f"at most {settings.max_body_bytes}",
                remedy="send a smaller model graph or table, or raise MESHWRIGHT_MAX_BODY_BYTES",
            )
        if tool != READ and tool not in TOOLS:
            raise InvalidInputError("there is no such tool", given=tool, allowed=", ".join(TOOLS))
        return str((await children.answer("", answered, {"tool": tool, "arguments": arguments}))["text"])

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=tool.description or inspect.getdoc(tool.arguments),
                    input_schema=TypeAdapter(tool.arguments).json_schema(),
                    annotations=types.ToolAnnotations(read_only_hint=not tool.stores, destructive_hint=False),
                )
                for name, tool in TOOLS.items()
            ]
        )

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text, is_error = await ask(params.name, params.arguments or {}), False
        except MeshwrightError as error:
            text, is_error = said(error), True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)

    async def list_resources(_: Any, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[types.Resource(name=n, uri=f"{SCHEME}{n}", description=each.listed) for n, each in RESOURCES.items()]
        )

    async def list_templates(_: Any, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(name=n, uri_template=f"{SCHEME}{n}/{{name}}", description=each.named)
                for n, each in RESOURCES.items()
                if each.one is not None
            ]
        )

    async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            text = await ask(READ, {"uri": params.uri})
        except MeshwrightError as error:
            code = types.INVALID_PARAMS if isinstance(error, InvalidInputError) else types.INTERNAL_ERROR
            raise MCPError(code=code, message=said(error)) from None
        content = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    server = Server[Any](
        "meshwright",
        version=installed_version(),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    async with stdio_server() as (incoming, outgoing):
        # By now stdin and stdout of this process lead nowhere: what children inherit is not the client's line.
        children.start()
        await server.run(incoming, outgoing, server.create_initialization_options())
