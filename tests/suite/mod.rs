#[cfg(feature = "server")]
mod grpc;
