//! Every method that is served: what its requests may take, and their shape.
//!
//! Made of the descriptors that reflection serves. A method that is named
//! nowhere here gets the small bound; one that is not described at all gets it
//! too, and then all of it is counted as decoded.

use std::collections::HashMap;

use prost::{DecodeError, Message};
use prost_types::{FileDescriptorSet, MethodDescriptorProto};

use super::{scan, shape::Shapes};
use crate::{
    domain::Limits,
    server::bounds::{self, DECODED_PER_MESSAGE_BYTE_MAX, REQUEST_BYTES_MAX},
};

/// What a method's requests carry.
#[derive(Clone, Copy)]
enum Carries {
    /// Several events.
    Batch,
    /// The content of one event, or what is compared with it.
    Body,
}

/// The methods whose requests carry what is stored. All others have
/// [`REQUEST_BYTES_MAX`].
const CARRIERS: [(&str, Carries); 14] = [
    ("/treering.v1.Events/Append", Carries::Batch),
    ("/treering.v1.Events/AppendStream", Carries::Batch),
    ("/treering.v1.Contexts/Set", Carries::Batch),
    ("/treering.v1.Items/Batch", Carries::Batch),
    ("/treering.v1.Contexts/Compact", Carries::Body),
    ("/treering.v1.Contexts/Spawn", Carries::Body),
    ("/treering.v1.Contexts/Return", Carries::Body),
    ("/treering.v1.Conversations/Fork", Carries::Body),
    ("/treering.v1.Conversations/Seal", Carries::Body),
    ("/treering.v1.Conversations/Erase", Carries::Body),
    ("/treering.v1.Tools/RecordResult", Carries::Body),
    ("/treering.v1.Tools/Recorded", Carries::Body),
    ("/treering.v1.Tools/SuggestArguments", Carries::Body),
    // Each span of a call to a model carries the whole history.
    (
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Carries::Batch,
    ),
];

/// A method, as far as its requests are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    /// Largest request message, compressed or not, in bytes.
    pub bytes_max: usize,
    /// The client may send more than one.
    pub streams: bool,
    /// Each is dealt with before the next one is read. Otherwise they are all
    /// held until the answer.
    pub pipelined: bool,
    message: Option<usize>,
}

impl Method {
    const UNKNOWN: Self = Self {
        bytes_max: REQUEST_BYTES_MAX,
        streams: false,
        pipelined: false,
        message: None,
    };
}

/// Decoding would take more than a method's requests may.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooMuch {
    /// In bytes.
    pub max: usize,
}

/// All methods, by path.
#[derive(Debug)]
pub(in crate::server) struct Methods {
    /// What one request may ever hold, in bytes.
    held_max: usize,
    methods: HashMap<String, Method>,
    shapes: Shapes,
}

impl Methods {
    /// Reads the descriptors of everything that is served. What would hold more than
    /// `held_max` bytes is refused for good: it would never find room.
    ///
    /// # Errors
    /// When descriptors cannot be read.
    pub fn read(
        descriptors: &[&[u8]],
        limits: &Limits,
        held_max: usize,
    ) -> Result<Self, DecodeError> {
        let mut methods = HashMap::new();
        let mut shapes = Shapes::default();
        for bytes in descriptors {
            let files = FileDescriptorSet::decode(*bytes)?;
            shapes.add(&files);
            for (path, described) in services(&files) {
                let streams = described.client_streaming();
                let method = Method {
                    bytes_max: bytes_max(&path, limits).min(held_max),
                    streams,
                    pipelined: streams && described.server_streaming(),
                    message: shapes.index(described.input_type()),
                };
                methods.insert(path, method);
            }
        }
        Ok(Self {
            held_max,
            methods,
            shapes,
        })
    }

    pub(super) fn get(&self, path: &str) -> Method {
        self.methods.get(path).copied().unwrap_or(Method::UNKNOWN)
    }

    /// What decoding a message takes, in bytes.
    pub(super) fn cost(&self, method: Method, bytes: &[u8]) -> Result<usize, TooMuch> {
        let max = method
            .bytes_max
            .saturating_mul(DECODED_PER_MESSAGE_BYTE_MAX)
            .min(self.held_max);
        match method.message {
            Some(message) => {
                scan::cost(&self.shapes, message, bytes, max).map_err(|_| TooMuch { max })
            }
            None => Ok(bytes.len()),
        }
    }

    #[cfg(test)]
    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, Method)> {
        let all = self.methods.iter();
        all.map(|(path, method)| (path.as_str(), *method))
    }

    #[cfg(test)]
    pub(super) fn shapes(&self) -> &Shapes {
        &self.shapes
    }
}

/// Largest message of any method, in bytes.
pub(in crate::server) fn message_bytes_max(limits: &Limits) -> usize {
    let batch = limits.batch_bytes_max;
    bounds::MESSAGE_BYTES_MAX.max(batch.saturating_add(bounds::ENVELOPE_BYTES_MAX))
}

fn bytes_max(path: &str, limits: &Limits) -> usize {
    let carries = CARRIERS.iter().find(|(carrier, _)| *carrier == path);
    match carries.map(|(_, carries)| carries) {
        Some(Carries::Batch) => message_bytes_max(limits),
        Some(Carries::Body) => limits.body_bytes_max.saturating_add(REQUEST_BYTES_MAX),
        None => REQUEST_BYTES_MAX,
    }
}

/// Paths and what they are.
fn services(files: &FileDescriptorSet) -> impl Iterator<Item = (String, &MethodDescriptorProto)> {
    files.file.iter().flat_map(|file| {
        file.service.iter().flat_map(|service| {
            service.method.iter().map(|method| {
                let (package, service) = (file.package(), service.name());
                (format!("/{package}.{service}/{}", method.name()), method)
            })
        })
    })
}
