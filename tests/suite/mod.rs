mod child;
mod crash;
mod engine;
mod grpc;
mod random;
