//! Sub-contexts: spawned from a conversation, returned to it.
