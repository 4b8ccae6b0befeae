//! The request limits and message shapes of every served method.
//!
//! Built from the descriptors that reflection serves. A method that is not one of the `CARRIERS`
//! gets the small limit, and so does one without a descriptor. The decoded size of a message
//! without a descriptor is taken to be its received size.

use std::collections::HashMap;

use prost::{DecodeError, Message};
use prost_types::{FileDescriptorSet, MethodDescriptorProto};

use super::{scan, shape::Shapes};
use crate::bounds::{self, DECODED_PER_MESSAGE_BYTE_MAX, REQUEST_BYTES_MAX};
use treering_domain::Limits;

/// What a method's requests carry.
#[derive(Clone, Copy)]
enum RequestContent {
    /// Several events.
    Batch,
    /// The content of one event, or data that is compared with it.
    Body,
}

/// Methods whose requests carry stored content. All others have [`REQUEST_BYTES_MAX`].
const CARRIERS: [(&str, RequestContent); 16] = [
    ("/treering.v1.Events/Append", RequestContent::Batch),
    ("/treering.v1.Events/AppendStream", RequestContent::Batch),
    ("/treering.v1.Contexts/Set", RequestContent::Batch),
    ("/treering.v1.Items/Batch", RequestContent::Batch),
    // With the long-term context, from another node.
    ("/treering.v1.Contexts/Build", RequestContent::Body),
    ("/treering.v1.Contexts/Explain", RequestContent::Body),
    ("/treering.v1.Contexts/Compact", RequestContent::Body),
    ("/treering.v1.Contexts/Spawn", RequestContent::Body),
    ("/treering.v1.Contexts/Return", RequestContent::Body),
    ("/treering.v1.Conversations/Fork", RequestContent::Body),
    ("/treering.v1.Conversations/Seal", RequestContent::Body),
    ("/treering.v1.Conversations/Erase", RequestContent::Body),
    ("/treering.v1.Tools/RecordResult", RequestContent::Body),
    ("/treering.v1.Tools/Recorded", RequestContent::Body),
    ("/treering.v1.Tools/SuggestArguments", RequestContent::Body),
    // Each span of a model call carries the whole history.
    (
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        RequestContent::Batch,
    ),
];

/// The request limits of a method.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    /// Largest request message, compressed or not, in bytes.
    pub bytes_max: usize,
    /// The client may send more than one message.
    pub streams: bool,
    /// Each message is handled before the next one is read. Otherwise all are held until the
    /// answer.
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

/// Decoding would take more memory than allowed for the method.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostExceeded {
    /// The limit, in bytes.
    pub(crate) max: usize,
}

/// All methods, by path.
#[derive(Debug)]
pub(crate) struct Methods {
    /// Maximum number of bytes that one request may ever hold.
    held_max: usize,
    methods: HashMap<String, Method>,
    shapes: Shapes,
}

impl Methods {
    /// Reads the descriptors of everything that is served. Requests that would hold more than
    /// `held_max` bytes are always refused, since they would never find room.
    ///
    /// # Errors
    /// When descriptors cannot be read.
    pub(crate) fn read(
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

    /// Returns the memory that decoding a message takes, in bytes.
    pub(super) fn cost(&self, method: Method, bytes: &[u8]) -> Result<usize, CostExceeded> {
        let max = method
            .bytes_max
            .saturating_mul(DECODED_PER_MESSAGE_BYTE_MAX)
            .min(self.held_max);
        match method.message {
            Some(message) => {
                scan::cost(&self.shapes, message, bytes, max).map_err(|_| CostExceeded { max })
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

/// Returns the largest message of any method, in bytes.
pub(crate) fn message_bytes_max(limits: &Limits) -> usize {
    let batch = limits.batch_bytes_max;
    bounds::MESSAGE_BYTES_MAX.max(batch.saturating_add(bounds::ENVELOPE_BYTES_MAX))
}

fn bytes_max(path: &str, limits: &Limits) -> usize {
    let carries = CARRIERS.iter().find(|(carrier, _)| *carrier == path);
    match carries.map(|(_, carries)| carries) {
        Some(RequestContent::Batch) => message_bytes_max(limits),
        Some(RequestContent::Body) => limits.body_bytes_max.saturating_add(REQUEST_BYTES_MAX),
        None => REQUEST_BYTES_MAX,
    }
}

/// Returns the methods with their paths.
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
