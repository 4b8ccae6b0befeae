mod engine;
#[cfg(feature = "server")]
mod grpc;
