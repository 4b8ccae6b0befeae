//! Sessions: the keys of logged-in visitors, kept only in this process. A browser has a random
//! session name, which is not derived from the key; sessions end with this process.

use std::{collections::HashMap, fmt, io, time::Duration};

use tokio::time::Instant;

use super::bounds::{SESSION_AGE_MAX, SESSION_IDLE_MAX, SESSIONS_MAX};
use treering_domain::hex;

/// Name of the cookie.
pub(crate) const COOKIE: &str = "treering_session";
/// Lifetime of the cookie, in seconds.
pub(crate) const SESSION_COOKIE_SECONDS: u64 = SESSION_AGE_MAX.as_secs();
/// Length of a secret in bytes.
const SECRET_BYTES: usize = 32;

/// Returns a random secret.
///
/// # Errors
/// When the system's random number generator fails.
pub(crate) fn secret() -> io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(hex(&bytes))
}

/// Compares two secrets in constant time.
#[must_use]
pub(crate) fn same(one: &str, other: &str) -> bool {
    // Comparing hashes takes constant time.
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions(HashMap<blake3::Hash, Session>);

struct Session {
    key: String,
    begun: Instant,
    used: Instant,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        let since = |then: Instant, max: Duration| now.saturating_duration_since(then) >= max;
        since(self.used, SESSION_IDLE_MAX) || since(self.begun, SESSION_AGE_MAX)
    }
}

fn named(name: &str) -> blake3::Hash {
    blake3::hash(name.as_bytes())
}

impl Sessions {
    /// Begins a session and returns its name.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub(crate) fn begin(&mut self, key: &str) -> io::Result<String> {
        let name = secret()?;
        let now = Instant::now();
        self.0.retain(|_, session| !session.is_over(now));
        if self.0.len() >= SESSIONS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, session)| session.used);
            if let Some(oldest) = oldest.map(|(name, _)| *name) {
                self.0.remove(&oldest);
            }
        }
        let session = Session {
            key: key.to_owned(),
            begun: now,
            used: now,
        };
        self.0.insert(named(&name), session);
        Ok(name)
    }

    /// Returns the key of a session that has not expired.
    pub(crate) fn key(&mut self, name: &str) -> Option<String> {
        let now = Instant::now();
        let session = self.0.get_mut(&named(name))?;
        if session.is_over(now) {
            self.end(name);
            return None;
        }
        session.used = now;
        Some(session.key.clone())
    }

    /// Ends a session.
    pub(crate) fn end(&mut self, name: &str) {
        self.0.remove(&named(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A session must end after a time without requests, and at a maximum age. Many logins must not
    // fill the server's memory.
    #[tokio::test(start_paused = true)]
    async fn sessions_expire_and_are_limited_in_number() {
        let mut sessions = Sessions::default();
        let name = sessions.begin("tr_key").unwrap();
        assert_eq!(sessions.key(&name).as_deref(), Some("tr_key"));
        assert_eq!(sessions.key("another"), None);
        tokio::time::advance(SESSION_IDLE_MAX - Duration::from_secs(1)).await;
        assert!(sessions.key(&name).is_some());
        tokio::time::advance(SESSION_IDLE_MAX).await;
        assert_eq!(sessions.key(&name), None);

        let name = sessions.begin("tr_key").unwrap();
        for _ in 0..(SESSION_AGE_MAX.as_secs() / 3_600 - 1) {
            tokio::time::advance(Duration::from_secs(3_600)).await;
            assert!(sessions.key(&name).is_some());
        }
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(sessions.key(&name), None);

        let first = sessions.begin("first").unwrap();
        for _ in 0..SESSIONS_MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
            sessions.begin("more").unwrap();
        }
        assert_eq!(sessions.key(&first), None);
        assert_eq!(sessions.0.len(), SESSIONS_MAX);
    }

    // A key in a log or a panic message is compromised, so debug output must not show it.
    #[test]
    fn debug_output_hides_the_api_keys() {
        let mut sessions = Sessions::default();
        sessions.begin("tr_live_secret").unwrap();
        assert!(!format!("{sessions:?}").contains("secret"));
    }
}
