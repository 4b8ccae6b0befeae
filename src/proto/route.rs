//! Which shard of a cluster takes a call of each method, as `proto/` defines it.

use crate::pb::RouteTo;

/// Which shard takes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodRoute {
    /// Paths, as field numbers, of text fields that can name a conversation. The first one that is
    /// not empty decides.
    pub conversation: &'static [&'static [u32]],
    /// Where the call goes if all of them are empty.
    pub to: RouteTo,
    /// The client may send more than one message.
    pub client_streams: bool,
    /// The server may send more than one message.
    pub server_streams: bool,
}

include!(concat!(env!("OUT_DIR"), "/route.rs"));

/// Returns the route of a method; `None` if it is not one of `treering.v1`.
#[must_use]
pub fn of(path: &str) -> Option<&'static MethodRoute> {
    let found = ROUTES.iter().find(|(method, _)| *method == path);
    found.map(|(_, route)| route)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access;

    // A method without a route cannot be called in a cluster.
    #[test]
    fn every_method_has_a_route() {
        for (path, _) in access::METHODS {
            let route = of(path).unwrap_or_else(|| panic!("{path} has no route"));
            let by_conversation = !route.conversation.is_empty();
            assert!(
                by_conversation || route.to != RouteTo::Unspecified,
                "{path}"
            );
        }
        assert_eq!(ROUTES.len(), access::METHODS.len());
    }

    // A wrong field number sends calls to a shard that does not have their conversation.
    #[test]
    fn known_routes_have_the_right_fields() {
        let fields = |path| of(path).unwrap().conversation;
        let wanted: &[&[u32]] = &[&[1]];
        assert_eq!(fields("/treering.v1.Contexts/Build"), wanted);
        let wanted: &[&[u32]] = &[&[4]];
        assert_eq!(fields("/treering.v1.Search/Search"), wanted);
        let wanted: &[&[u32]] = &[&[1, 1], &[2, 1]];
        assert_eq!(fields("/treering.v1.Events/Read"), wanted);
        let wanted: &[&[u32]] = &[&[1, 1]];
        assert_eq!(fields("/treering.v1.Tools/RecordResult"), wanted);
    }
}
