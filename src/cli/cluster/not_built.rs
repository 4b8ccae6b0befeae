//! Refuses to serve a node, and to run `cluster`: the feature `cluster` is off.

use std::future::Future;

use super::{ClusterArgs, ClusterCommandArgs, NodeParts};
use crate::{
    args::Common,
    error::{ClientError, Exit},
    output::Out,
};
use treering_access::{KeyFile, KeyFileError};

impl ClusterArgs {
    /// # Errors
    /// Always.
    pub(crate) async fn serve(
        &self,
        _: &str,
        _: NodeParts,
        _: impl Future<Output = ()>,
        _: &mut Out,
    ) -> Result<(), ClientError> {
        Err(not_built())
    }
}

/// # Errors
/// Always.
pub(crate) async fn run(
    _: &ClusterCommandArgs,
    _: &Common,
    _: &mut Out,
) -> Result<(), ClientError> {
    Err(not_built())
}

/// # Errors
/// Always.
pub(crate) async fn change_keys<T>(
    _: &str,
    _: impl FnMut(&mut KeyFile) -> Result<T, KeyFileError>,
) -> Result<T, ClientError> {
    Err(not_built())
}

/// # Errors
/// Always.
pub(crate) async fn read_keys(_: &str) -> Result<KeyFile, ClientError> {
    Err(not_built())
}

fn not_built() -> ClientError {
    ClientError::Outcome {
        what: "this program was built without clusters".to_owned(),
        hint: "build it with `cargo build --release --features full`".to_owned(),
        exit: Exit::Failed,
    }
}
