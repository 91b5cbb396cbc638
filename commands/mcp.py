"""`--pipeline mcp`: a running service for clients that start their MCP servers themselves and talk over stdio."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx2
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from commands.running_service import find_service
from environment.home import VERSION

_ANSWER_SECONDS = 330.0
"""More than a service allows any question."""
KEY = "EMAIL_AGENT_KEY"
"""Environment variable with the key to use. Without it, the owner's, which ZenML knows, is used."""


def run_mcp(name: str) -> None:
    """Pass messages between standard input and output and the service `name` until the input ends.

    Raises:
        BadInput: ZenML knows no such service.
        RunFailed: the service does not answer.
    """
    service = find_service(name)
    headers = {"Authorization": f"Bearer {os.environ[KEY]}"} if os.environ.get(KEY) else service.headers
    try:
        asyncio.run(_pass_on(f"{service.url}/mcp", headers))
    except* (httpx2.TransportError, httpx2.HTTPStatusError) as group:
        raise service.does_not_answer(group.exceptions[0]) from group


async def _pass_on(url: str, headers: dict[str, str]) -> None:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=_ANSWER_SECONDS) as http,
        Client(streamable_http_client(url, http_client=http), cache=None) as service,
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
