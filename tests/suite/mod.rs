mod engine;
#[cfg(feature = "server")]
mod grpc;
mod tidy;
