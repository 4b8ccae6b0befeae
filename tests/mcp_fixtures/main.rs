//! A server for the MCP conformance suite: it offers the tools, resources and prompts that the
//! scenarios of the suite need, at the endpoint `/mcp` of `treering serve`.
//!
//! The port, the transport and the message parser are those of the program. Only the tools,
//! resources and prompts are made up. `.ci/mcp.sh` runs it.

mod prompts;
mod questions;
mod resources;
mod tools;

use std::{error::Error, future::pending};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, GetPromptRequestParams, GetPromptResponse,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
        ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use tokio::net::TcpListener;
use treering::{
    access::KeyStore,
    engine::{Engine, OpenOptions},
    server::{ServeOptions, WebPlace, serve},
};
use treering_mcp::{HttpEndpoint, MCP_PATH};

/// The tools, resources and prompts that the suite needs.
#[derive(Clone, Copy, Debug)]
struct Fixtures;

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_prompts()
            .build();
        ServerConfig::new(capabilities)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::offered()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::offered().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        tools::call(request, &context).await
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::offered()))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(
            resources::templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&request.uri).map(Into::into)
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(prompts::offered()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let client = context.client_capabilities().unwrap_or_default();
        prompts::get(request, client)
    }
}

/// Serves until it is killed. Prints its address.
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let keys = KeyStore::open(folder.path())?;
    let engine = Engine::open(OpenOptions::new(folder.path())).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let place = WebPlace::new(address, Vec::new(), false);
    let door = HttpEndpoint::open_to(Fixtures, engine.clone().into(), keys.clone(), place).await?;
    let options = ServeOptions {
        keys: Some(keys),
        web: Some(door.web()),
        ..ServeOptions::default()
    };
    println!("http://{address}{MCP_PATH}");
    serve(engine, listener, pending(), options).await?;
    Ok(())
}
