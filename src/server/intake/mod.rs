//! Requests on their way in: bounded before anything is decoded.
//!
//! Every call of every service passes through here, whatever its method: a
//! request is gathered, inflated and counted within the bounds of its method,
//! and what is under way is counted for its connection and for the server. The
//! services, and the gRPC library below them, see whole messages only. Nothing
//! here knows what a request means.
//!
//! `budget` counts bytes under way, `methods` knows the bounds, `shape` and
//! `scan` tell what decoding takes, `inflate` decompresses, `body` puts them
//! together, `refusal` says what was refused.

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

use crate::{domain::Limits, server::guard::Counted};

use body::IntakeBody;
use budget::{Account, Charge, Pool};
use inflate::Encoding;

use methods::Methods;

pub(super) use methods::message_bytes_max;

/// What all connections share.
#[derive(Clone, Debug)]
pub(super) struct Intake {
    methods: Arc<Methods>,
    pool: Arc<Pool>,
}

impl Intake {
    /// For what these descriptors describe. `bytes_max`: what all connections may hold
    /// together, in bytes.
    ///
    /// # Errors
    /// When descriptors cannot be read.
    pub fn new(
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

    /// For a new connection.
    pub fn connection(&self) -> ConnectionIntake {
        ConnectionIntake {
            methods: Arc::clone(&self.methods),
            account: Account::new(Arc::clone(&self.pool)),
        }
    }
}

/// What the calls of a connection share.
#[derive(Clone, Debug)]
pub(super) struct ConnectionIntake {
    methods: Arc<Methods>,
    account: Arc<Account>,
}

/// What a call holds until it is answered.
#[derive(Debug)]
pub(super) struct Held {
    charge: Arc<Charge>,
}

impl Held {
    /// Bytes of the request that have come.
    pub fn received(&self) -> u64 {
        self.charge.received()
    }
}

impl ConnectionIntake {
    /// The same call, its body within bounds, and counted for whoever sends it.
    pub fn admit(&self, call: Request<Body>, counted: Option<Counted>) -> (Request<Body>, Held) {
        let method = self.methods.get(call.uri().path());
        let encoding = call.headers().get("grpc-encoding");
        let encoding = encoding.and_then(|value| Encoding::of(value.as_bytes()));
        let charge = Arc::new(Charge::new(Arc::clone(&self.account)));
        let held = Held {
            charge: Arc::clone(&charge),
        };
        let methods = Arc::clone(&self.methods);
        let call = call.map(|inner| {
            let body = IntakeBody::new(inner, methods, method, encoding, charge);
            Body::new(body.counted(counted))
        });
        (call, held)
    }
}
