//! The pages, one module each: `pub async fn page(request_context: RequestContext, …) ->
//! Result<Page, PageFailure>`.

pub(crate) mod approvals;
pub(crate) mod assets;
pub(crate) mod branches;
pub(crate) mod call;
pub(crate) mod conversations;
pub(crate) mod correlated;
pub(crate) mod diff;
pub(crate) mod event;
pub(crate) mod login;
pub(crate) mod media;
pub(crate) mod namespace;
pub(crate) mod request;
pub(crate) mod search;
pub(crate) mod store;
pub(crate) mod text;
pub(crate) mod tools;
pub(crate) mod transcript;
pub(crate) mod usage;
