//! Limits incoming requests before anything is decoded.
//!
//! Every call of every service passes through here: a request is gathered, decompressed and counted
//! within the limits of its method, and its bytes are counted for the connection and the server.
//! The services, and the gRPC library below them, see whole messages only. This module does not
//! know what a request means.
//!
//! `budget` counts bytes in flight, `methods` has the limits, `shape` and `scan` compute the memory
//! that decoding takes, `inflate` decompresses, `body` combines these, `refusal` has the errors.

mod body;
mod budget;
mod inflate;
mod methods;
mod refusal;
mod scan;
mod shape;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::Request;
use prost::DecodeError;
use tonic::body::Body;

use crate::guard::TrafficCounter;
use treering_domain::Limits;

use body::BoundedBody;
use budget::{Account, Charge, Pool};
use inflate::Encoding;

use methods::Methods;

pub(super) use methods::message_bytes_max;

/// State shared by all connections.
#[derive(Clone, Debug)]
pub(super) struct AdmissionControl {
    methods: Arc<Methods>,
    pool: Arc<Pool>,
}

impl AdmissionControl {
    /// Returns the admission control for the services in these descriptors. `bytes_max` is the
    /// limit of all connections together, in bytes.
    ///
    /// # Errors
    /// When the descriptors cannot be read.
    pub(crate) fn new(
        descriptors: &[&[u8]],
        limits: &Limits,
        bytes_max: usize,
    ) -> Result<Self, DecodeError> {
        let methods = Methods::read(descriptors, limits, Pool::most_for_one(bytes_max))?;
        Ok(Self {
            methods: Arc::new(methods),
            pool: Pool::new(bytes_max),
        })
    }

    /// Returns the admission state of a new connection.
    pub(crate) fn connection(&self) -> ConnectionAdmission {
        ConnectionAdmission {
            methods: Arc::clone(&self.methods),
            account: Account::new(Arc::clone(&self.pool)),
        }
    }
}

/// State shared by the calls of a connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionAdmission {
    methods: Arc<Methods>,
    account: Arc<Account>,
}

/// The bytes that a call holds until it is answered.
#[derive(Debug)]
pub(super) struct HeldBytes {
    charge: Arc<Charge>,
}

impl HeldBytes {
    /// Returns the bytes of the request received so far.
    pub(crate) fn received(&self) -> u64 {
        self.charge.received()
    }
}

impl ConnectionAdmission {
    /// Returns the call with its body limited and counted for the sender.
    pub(crate) fn admit(
        &self,
        call: Request<Body>,
        counted: Option<TrafficCounter>,
    ) -> (Request<Body>, HeldBytes) {
        let method = self.methods.get(call.uri().path());
        let encoding = call.headers().get("grpc-encoding");
        let encoding = encoding.and_then(|value| Encoding::of(value.as_bytes()));
        let charge = Arc::new(Charge::new(Arc::clone(&self.account)));
        let held = HeldBytes {
            charge: Arc::clone(&charge),
        };
        let methods = Arc::clone(&self.methods);
        let call = call.map(|inner| {
            let body = BoundedBody::new(inner, methods, method, encoding, charge);
            Body::new(body.counted(counted))
        });
        (call, held)
    }
}
