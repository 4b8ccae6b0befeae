//! Reads forms. All forms are read here, so that no form from another site is accepted: the token
//! of a form must be that of the visitor's page.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::{FromRequest, FromRequestParts},
};
use http::{Request, StatusCode, header::CONTENT_TYPE, request::Parts};

use super::{
    bounds::FORM_BYTES_MAX,
    failure::PageFailure,
    request_context::{AnonymousRequest, PageQuery, RequestAddress, RequestContext},
    session::same,
    site::Site,
};

/// A form of one of our pages, with the context of the request that sends it: `async fn
/// decide(form: Form) -> Result<Redirect, PageFailure>`.
#[derive(Debug)]
pub(crate) struct Form {
    /// The visitor who sends it.
    pub(crate) request_context: RequestContext,
    /// Its fields.
    pub(crate) fields: PageQuery,
}

impl FromRequest<Arc<Site>> for Form {
    type Rejection = PageFailure;

    async fn from_request(request: Request<Body>, site: &Arc<Site>) -> Result<Self, PageFailure> {
        let (mut parts, body) = request.into_parts();
        let request_context = RequestContext::from_request_parts(&mut parts, site).await?;
        let fields = fields(&parts, body, &request_context.here).await?;
        Ok(Self {
            request_context,
            fields,
        })
    }
}

/// A form of a visitor who need not be logged in. Its fields are in `asked` of the request.
#[derive(Debug)]
pub(crate) struct AnonymousForm(pub(crate) AnonymousRequest);

impl FromRequest<Arc<Site>> for AnonymousForm {
    type Rejection = PageFailure;

    async fn from_request(request: Request<Body>, site: &Arc<Site>) -> Result<Self, PageFailure> {
        let (mut parts, body) = request.into_parts();
        let stranger = AnonymousRequest::from_request_parts(&mut parts, site).await?;
        let asked = fields(&parts, body, &stranger.here).await?;
        Ok(Self(AnonymousRequest { asked, ..stranger }))
    }
}

async fn fields(
    parts: &Parts,
    body: Body,
    here: &RequestAddress,
) -> Result<PageQuery, PageFailure> {
    let kind = parts.headers.get(CONTENT_TYPE);
    let is_form = kind.is_some_and(|kind| {
        kind.as_bytes()
            .starts_with(b"application/x-www-form-urlencoded")
    });
    if !is_form {
        return Err(PageFailure::asked(
            "the request is not a form",
            "use the form on the page",
        ));
    }
    let bytes = to_bytes(body, FORM_BYTES_MAX).await;
    let bytes =
        bytes.map_err(|_| PageFailure::asked("the form is too large", "shorten your text"))?;
    let fields = PageQuery::of_bytes(&bytes);
    if !same(fields.text("token").unwrap_or_default(), &here.token) {
        return Err(PageFailure::new(
            StatusCode::FORBIDDEN,
            "the form is not from a page of this login",
            "go back, reload the page, and send it again; nothing was changed",
        ));
    }
    Ok(fields)
}
