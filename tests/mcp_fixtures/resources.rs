//! A text, some bytes, and a template.

use rmcp::{
    ErrorData,
    model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate},
};
use serde_json::json;

use super::tools::PNG;

const TEXT: &str = "test://static-text";
const BINARY: &str = "test://static-binary";

/// Returns all resources.
#[must_use]
pub fn offered() -> Vec<Resource> {
    vec![
        Resource::new(TEXT, "text").with_mime_type("text/plain"),
        Resource::new(BINARY, "picture").with_mime_type("image/png"),
    ]
}

/// Returns the template.
#[must_use]
pub fn templates() -> Vec<ResourceTemplate> {
    let template = ResourceTemplate::new("test://template/{id}/data", "data");
    vec![template.with_mime_type("application/json")]
}

/// Reads a resource.
///
/// # Errors
/// If there is no such resource.
pub fn read(uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let templated = uri.strip_prefix("test://template/");
    let contents = match (uri, templated.and_then(|rest| rest.strip_suffix("/data"))) {
        (TEXT, _) => ResourceContents::text("A text that stays.", uri),
        (BINARY, _) => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        (_, Some(id)) => ResourceContents::text(json!({"id": id}).to_string(), uri)
            .with_mime_type("application/json"),
        _ => {
            let data = Some(json!({"uri": uri}));
            return Err(ErrorData::resource_not_found(
                "there is no such resource",
                data,
            ));
        }
    };
    Ok(ReadResourceResult::new(vec![contents]))
}
