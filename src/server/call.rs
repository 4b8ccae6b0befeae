//! The namespace, deadline and caller of a call, and how its stream ends.

use std::time::Duration;

use futures::{Stream, StreamExt, stream::BoxStream};
use http::HeaderMap;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::{
    audit::Audit,
    from_proto::{self, InvalidField},
    guard::Caller,
    shutdown::{Phase, StopSignal},
    status::Refusal,
};
use treering_domain::{ConversationId, Namespace};
use treering_engine::{BranchAddress, Engine};

/// The metadata key of the namespace.
pub const NAMESPACE_KEY: &str = "treering-namespace";

const TIMEOUT_HEADER: &str = "grpc-timeout";

/// Shared by all services.
#[derive(Clone)]
pub(super) struct ServiceContext {
    pub(crate) engine: Engine,
    pub(crate) stop: StopSignal,
    pub(crate) audit: Audit,
}

impl ServiceContext {
    /// Resolves the conversation that a field names, by UUID or source id, and counts it as read if
    /// the call changes nothing.
    pub(crate) async fn conversation(
        &self,
        call: &Call,
        field: &str,
        id: &str,
    ) -> Result<ConversationId, Refusal> {
        from_proto::required(field, id)?;
        from_proto::check_short(field, id)?;
        let found = self.engine.resolve(&call.namespace, id).await?;
        call.caller.names(found);
        Ok(found)
    }

    /// Resolves the branch that a request names by `conversation_id` and `branch`.
    pub(crate) async fn address(
        &self,
        call: &Call,
        id: &str,
        branch: &str,
    ) -> Result<BranchAddress, Refusal> {
        let branch = from_proto::branch("branch", branch)?;
        Ok(BranchAddress {
            namespace: call.namespace.clone(),
            conversation: self.conversation(call, "conversation_id", id).await?,
            branch,
        })
    }
}

/// Namespace, deadline and caller of a call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(crate) namespace: Namespace,
    pub(crate) deadline: Option<Instant>,
    pub(crate) caller: Caller,
}

impl Call {
    /// Returns the context of an admitted call.
    ///
    /// # Errors
    /// `INTERNAL` if no guard admitted the call.
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let caller = request.extensions().get::<Caller>();
        let caller =
            caller.ok_or_else(|| Status::internal("the call has no authenticated caller"))?;
        let headers: &HeaderMap = request.metadata().as_ref();
        Ok(Self {
            namespace: caller.namespace.clone(),
            deadline: timeout_of(headers).map(|timeout| Instant::now() + timeout),
            caller: caller.clone(),
        })
    }

    /// Ends the stream when the call's deadline passes, its key becomes invalid, or the server
    /// reaches `phase`.
    pub(crate) fn bound<T: Send + 'static>(
        &self,
        source: impl Stream<Item = Result<T, Status>> + Send + 'static,
        stop: StopSignal,
        phase: Phase,
    ) -> BoxStream<'static, Result<T, Status>> {
        let (deadline, caller) = (self.deadline, self.caller.clone());
        async_stream::stream! {
            let mut source = std::pin::pin!(source);
            let mut over = std::pin::pin!(over(deadline, caller, stop, phase));
            loop {
                let next = tokio::select! {
                    biased;
                    status = &mut over => Some(Err(status)),
                    next = source.next() => next,
                };
                match next {
                    Some(Ok(item)) => yield Ok(item),
                    Some(Err(status)) => {
                        yield Err(status);
                        break;
                    }
                    None => break,
                }
            }
        }
        .boxed()
    }
}

/// Waits until a call must end, and returns why.
async fn over(deadline: Option<Instant>, caller: Caller, stop: StopSignal, phase: Phase) -> Status {
    let passed = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = passed => deadline_exceeded(),
        () = stop.reached(phase) => shutting_down(),
        refusal = caller.wait_until_invalid() => Refusal::from(refusal).into(),
    }
}

pub(super) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the call's deadline has passed")
}

pub(super) fn shutting_down() -> Status {
    Status::unavailable(
        "the server is shutting down: reconnect and continue from the last position",
    )
}

/// Returns the namespace that a call names.
///
/// # Errors
/// [`InvalidField`] when it is not a valid name, or is given twice.
pub(super) fn namespace(headers: &HeaderMap) -> Result<Namespace, InvalidField> {
    let mut values = headers.get_all(NAMESPACE_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(Namespace::default());
    };
    if values.next().is_some() {
        return Err(InvalidField::new(NAMESPACE_KEY, "is given more than once"));
    }
    let name = value
        .to_str()
        .map_err(|_| InvalidField::new(NAMESPACE_KEY, "is not ASCII text"))?;
    Namespace::new(name).map_err(|error| InvalidField::new(NAMESPACE_KEY, error.to_string()))
}

/// Returns the timeout in the headers of a call.
pub(super) fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    timeout(headers.get(TIMEOUT_HEADER)?.as_bytes())
}

/// Parses `grpc-timeout`: up to eight digits and a unit. Anything else counts as no deadline, as in
/// other gRPC implementations.
fn timeout(text: &[u8]) -> Option<Duration> {
    const DIGITS_MAX: usize = 8;
    let (unit, digits) = text.split_last()?;
    let legal = (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    if !legal {
        return None;
    }
    let amount: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(amount * 3_600),
        b'M' => Duration::from_secs(amount * 60),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::Stopper;

    // A misread deadline ends calls too early or never. Other text must not count as a deadline.
    #[test]
    fn grpc_timeouts_are_parsed() {
        for (text, expected) in [
            ("1H", Some(Duration::from_secs(3_600))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("0n", Some(Duration::ZERO)),
            ("", None),
            ("S", None),
            ("123456789S", None),
            ("-1S", None),
            ("1x", None),
            ("1.5S", None),
        ] {
            assert_eq!(timeout(text.as_bytes()), expected, "{text:?}");
        }
    }

    // A misread namespace shows one tenant another's data. Two names or an invalid one are refused.
    #[test]
    fn namespace_header_is_parsed_or_refused() {
        let call = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(NAMESPACE_KEY, value.parse().unwrap());
            }
            namespace(&headers).map(|namespace| namespace.to_string())
        };
        assert_eq!(call(&[]).unwrap(), "default");
        assert_eq!(call(&["team-1.x_Y"]).unwrap(), "team-1.x_Y");
        for bad in [
            &[""][..],
            &["a b"],
            &["a/b"],
            &["a", "a"],
            &["a,b"],
            &["."],
            &[".."],
            &["a\tb"],
            &["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"],
        ] {
            assert_eq!(call(bad).unwrap_err().field, NAMESPACE_KEY, "{bad:?}");
        }
    }

    // An endless stream must still end: at its deadline, and when the server shuts down.
    #[tokio::test]
    async fn streams_end_at_deadline_and_shutdown() {
        let endless = || futures::stream::pending::<Result<(), Status>>();
        let (stopper, stop) = Stopper::new();
        let mut call = Call {
            namespace: Namespace::default(),
            deadline: Some(Instant::now()),
            caller: Caller::anybody(Namespace::default()),
        };
        let mut stream = call.bound(endless(), stop.clone(), Phase::Draining);
        let status = stream.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert!(stream.next().await.is_none());

        call.deadline = None;
        let mut stream = call.bound(endless(), stop, Phase::Draining);
        stopper.advance(Phase::Draining);
        let status = stream.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }
}
