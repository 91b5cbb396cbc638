"""`--pipeline mcp`: a running service for clients that start their MCP servers themselves and talk over stdio."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from mcp import Client, MCPError, types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from commands.running_service import ANSWER_SECONDS, RunningService, accepted, find_service
from environment.home import VERSION


def run_mcp(name: str) -> None:
    """Pass messages between standard input and output and the service `name` until the input ends.

    Raises:
        BadInput: ZenML knows no such service, or it refuses the key.
        RunFailed: the service does not answer.
    """
    running = find_service(name)
    with running.client() as client:
        accepted(client.get("/model"))  # says why it refuses, which the protocol's client does not pass on
    try:
        asyncio.run(_pass_on(running))
    except* (httpx2.TransportError, httpx2.HTTPStatusError, MCPError) as group:
        cause: BaseException = group
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        raise running.does_not_answer(cause) from group


async def _pass_on(running: RunningService) -> None:
    async with (
        httpx2.AsyncClient(headers=running.headers, timeout=ANSWER_SECONDS, trust_env=running.trust_env) as http,
        Client(streamable_http_client(f"{running.url}/mcp", http_client=http), cache=None) as service,
    ):

        async def list_tools(_: object, __: object) -> types.ListToolsResult:
            return await service.list_tools()

        async def call_tool(_: object, called: types.CallToolRequestParams) -> types.CallToolResult:
            return await service.call_tool(called.name, called.arguments or {})

        async def list_resources(_: object, __: object) -> types.ListResourcesResult:
            return await service.list_resources()

        async def list_templates(_: object, __: object) -> types.ListResourceTemplatesResult:
            return await service.list_resource_templates()

        async def read_resource(_: object, wanted: types.ReadResourceRequestParams) -> types.ReadResourceResult:
            return await service.read_resource(str(wanted.uri))

        server: Server[Any] = Server(
            "email-search-agent",
            version=VERSION,
            instructions=service.instructions,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_list_resources=list_resources,
            on_list_resource_templates=list_templates,
            on_read_resource=read_resource,
        )
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
