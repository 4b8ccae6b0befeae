//! Refuses to serve a node, and to run `cluster`: the feature `cluster` is off.

use std::future::Future;

use super::{ClusterArgs, ClusterCommandArgs, NodeParts};
use crate::{
    args::Common,
    error::{ClientError, Exit},
    output::Out,
};

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

fn not_built() -> ClientError {
    ClientError::Outcome {
        what: "this program was built without clusters".to_owned(),
        hint: "build it with `cargo build --release --features full`".to_owned(),
        exit: Exit::Failed,
    }
}
