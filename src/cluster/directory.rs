//! Tells the router of `treering-server` which shards this node serves, and who serves the others.

use std::sync::Arc;

use treering_domain::ShardId;
use treering_engine::{Engine, ShardMap};
use treering_server::{LocalShard, OwnerNode, ShardAway, ShardDirectory, ShardRole, ShardServices};

use crate::node::{ClusterNode, NotServed, ShardGuard};

impl ShardDirectory for ClusterNode {
    fn shard_map(&self) -> ShardMap {
        self.shard_map()
    }

    fn address(&self) -> String {
        self.address().to_owned()
    }

    fn secret(&self) -> String {
        self.process().to_string()
    }

    fn served(&self) -> Vec<ShardId> {
        self.served()
    }

    fn roles(&self) -> Vec<ShardRole> {
        self.roles()
    }

    fn shard(&self, shard: ShardId) -> Result<Arc<dyn LocalShard>, ShardAway> {
        let guard = self.shard(shard)?;
        Ok(Arc::new(guard))
    }
}

impl LocalShard for ShardGuard {
    fn engine(&self) -> &Engine {
        self.engine()
    }

    fn check(&self) -> Result<(), ShardAway> {
        Ok(self.check()?)
    }

    fn services(&self) -> &ShardServices {
        self.services()
    }
}

impl From<NotServed> for ShardAway {
    fn from(reason: NotServed) -> Self {
        match reason {
            NotServed::Elsewhere(owner) => Self::Elsewhere(OwnerNode {
                address: owner.address,
                secret: owner.process.to_string(),
            }),
            NotServed::Moving => Self::Moving,
            NotServed::NoLease => Self::NoLease,
            NotServed::Unknown => Self::Unknown,
        }
    }
}
