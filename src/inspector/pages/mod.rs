//! The pages, one module each: `pub async fn page(visit: Visit, …) -> Result<Page, PageFailure>`.

pub mod assets;
pub mod conversations;
pub mod correlated;
pub mod event;
pub mod login;
pub mod media;
pub mod namespace;
pub mod search;
pub mod store;
pub mod text;
pub mod transcript;
