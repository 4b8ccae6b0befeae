//! Errors as pages: what happened, and what the visitor can do.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use maud::{Markup, html};
use tonic::{Code, Status};

use super::{
    frame::{self, Page, Tab},
    parts::escape::escape_inline,
    request_context::RequestAddress,
};
use treering_client::ClientError;

/// An error. As a response it is an error page, made by [`error_page`].
#[derive(Clone, Debug)]
pub(crate) struct PageFailure {
    status: StatusCode,
    what: String,
    hint: String,
    /// Whether logging in may help.
    asks_for_key: bool,
}

impl PageFailure {
    /// Makes an error with a hint.
    #[must_use]
    pub(crate) fn new(
        status: StatusCode,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            status,
            what: what.into(),
            hint: hint.into(),
            asks_for_key: false,
        }
    }

    /// Makes an error for an invalid request.
    #[must_use]
    pub(crate) fn asked(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, what, hint)
    }

    /// Makes an error for something that does not exist.
    #[must_use]
    pub(crate) fn none(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, what, hint)
    }

    /// Makes an error for a request that requires a login.
    #[must_use]
    pub(crate) fn no_key(what: impl Into<String>) -> Self {
        Self {
            asks_for_key: true,
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                what,
                "log in with a key of this store",
            )
        }
    }

    /// Makes an error for a page that took too long.
    #[must_use]
    pub(crate) fn too_long() -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "the page took too long",
            "ask for less, or retry in a moment",
        )
    }

    /// Makes an error for a fault of this program.
    #[must_use]
    pub(crate) fn ours(what: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            what,
            "check the server's log; if it happens again, it is a bug",
        )
    }

    /// True when logging in may help.
    #[must_use]
    pub(crate) fn asks_for_key(&self) -> bool {
        self.asks_for_key
    }

    /// Returns the status of the response.
    #[must_use]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Renders the error within a page, beside the submitted form.
    #[must_use]
    pub(crate) fn notice(&self) -> Markup {
        html! {
            div.notice.bad role="alert" {
                p.what { strong { (heading(self.status)) ": " } (escape_inline(&self.what)) }
                @if !self.hint.is_empty() { p { (escape_inline(&self.hint)) } }
            }
        }
    }

    /// Renders the error.
    #[must_use]
    pub(crate) fn markup(&self) -> Markup {
        html! {
            section.failure role="alert" {
                h1 { (heading(self.status)) }
                p.what { (escape_inline(&self.what)) }
                @if !self.hint.is_empty() { p.hint { (escape_inline(&self.hint)) } }
            }
        }
    }
}

impl From<Status> for PageFailure {
    fn from(status: Status) -> Self {
        ClientError::from(status).into()
    }
}

impl From<ClientError> for PageFailure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Status(status) => status.code(),
            ClientError::NotFound { .. } => Code::NotFound,
            ClientError::Usage { .. } => Code::InvalidArgument,
            ClientError::Connect { .. } => Code::Unavailable,
            _ => Code::Internal,
        };
        Self {
            status: http_status(code),
            what: error.to_string(),
            hint: hint(code, &error),
            asks_for_key: code == Code::Unauthenticated,
        }
    }
}

impl IntoResponse for PageFailure {
    fn into_response(self) -> Response {
        let mut answer = self.status.into_response();
        answer.extensions_mut().insert(self);
        answer
    }
}

/// Returns the error page for a failed request.
#[must_use]
pub(crate) fn error_page(here: &RequestAddress, failure: &PageFailure) -> Response {
    let page: Page = frame::page(here, heading(failure.status), Tab::None, failure.markup());
    let mut answer = page.into_response();
    *answer.status_mut() = failure.status;
    answer
}

fn heading(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "Invalid request",
        StatusCode::UNAUTHORIZED => "Log in",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::METHOD_NOT_ALLOWED => "Method not allowed",
        StatusCode::CONFLICT => "Not possible now",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests",
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => "Not available now",
        _ => "Something went wrong",
    }
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns the hint for an error: that of the command line, unless it only helps there.
fn hint(code: Code, error: &ClientError) -> String {
    match code {
        Code::NotFound => match error.hint() {
            Some(said) if said.starts_with("did you mean") || said.starts_with("type more") => said,
            _ => "see the list of conversations, or search".to_owned(),
        },
        Code::Unauthenticated => "log in with a key of this store".to_owned(),
        Code::PermissionDenied => {
            "your key does not allow this: log out and use another key, or choose another namespace"
                .to_owned()
        }
        _ => match error.hint() {
            Some(said) if !names_a_command(&said) => said,
            _ => by_code(code).to_owned(),
        },
    }
}

/// True for a hint that only helps at a terminal.
fn names_a_command(hint: &str) -> bool {
    hint.contains("`treering") || hint.contains("--") || hint.contains("TREERING_")
}

/// Returns the hint for a status code.
fn by_code(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument | Code::OutOfRange => {
            "change the values in the form or in the address, and retry"
        }
        Code::AlreadyExists => "use another name",
        Code::FailedPrecondition | Code::Aborted => "reload the page to see the current state",
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded => "retry in a moment",
        Code::DataLoss => "the store's administrator can find out more with `treering verify`",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Hints on pages must not name commands or flags, because readers of a page have no command
    // line.
    #[test]
    fn page_hints_name_no_cli_commands() {
        for code in [
            Code::InvalidArgument,
            Code::OutOfRange,
            Code::AlreadyExists,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::Unavailable,
        ] {
            let failure = PageFailure::from(Status::new(code, "no"));
            assert!(!failure.hint.is_empty(), "{code:?}");
            let names = failure.hint.contains('`') || failure.hint.contains("--");
            assert!(!names, "{}", failure.hint);
        }
    }

    // Error messages contain input: it must be output as text.
    #[test]
    fn failure_text_is_escaped() {
        let failure = PageFailure::none("there is no <script>x</script>", "look & see");
        let page = failure.markup().into_string();
        assert!(
            !page.contains("<script>") && page.contains("&lt;script&gt;"),
            "{page}"
        );
        let denied: PageFailure = Status::permission_denied("no").into();
        assert_eq!(denied.status, StatusCode::FORBIDDEN);
        assert!(!denied.asks_for_key());
        assert!(PageFailure::from(Status::unauthenticated("who")).asks_for_key());
        assert!(!failure.notice().into_string().contains("<script>"));
    }
}
