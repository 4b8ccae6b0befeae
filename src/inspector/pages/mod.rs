//! The pages, one module each: `pub async fn page(visit: Visit, …) -> Result<Page, PageFailure>`.

pub mod approvals;
pub mod assets;
pub mod branches;
pub mod call;
pub mod conversations;
pub mod correlated;
pub mod diff;
pub mod event;
pub mod login;
pub mod media;
pub mod namespace;
pub mod request;
pub mod search;
pub mod store;
pub mod text;
pub mod tools;
pub mod transcript;
