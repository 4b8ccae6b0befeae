//! Finds the recorded spellings of a tool's name.

use tantivy::TantivyError;

use super::{
    SearchIndex,
    error::IndexSearchError,
    hits::unreadable,
    query::{FILTER_VALUES_MAX, catch_search_panics},
    schema::tool_tag,
};
use treering_domain::Namespace;

/// Maximum number of names of a segment that are compared.
const COMPARED_MAX: usize = 1 << 16;

impl SearchIndex {
    /// Returns the recorded tool names that match these names in any case. A name in double quotes
    /// is exact. The result contains the names themselves, too. It is cut at the maximum number of
    /// values in a filter.
    ///
    /// # Errors
    /// [`IndexSearchError`] when the index is damaged.
    pub fn tools_named(
        &self,
        namespace: &Namespace,
        names: &[String],
    ) -> Result<Vec<String>, IndexSearchError> {
        let mut found: Vec<String> = Vec::new();
        let mut in_any_case = Vec::new();
        for name in names {
            match unquoted(name) {
                Some(exact) => found.push(exact.to_owned()),
                None => {
                    found.push(name.clone());
                    in_any_case.push(name.to_lowercase());
                }
            }
        }
        if !in_any_case.is_empty() {
            let spelled = catch_search_panics(|| {
                let spelled = self.spellings(namespace, &in_any_case);
                Ok(spelled.map_err(unreadable)?)
            })?;
            found.extend(spelled);
        }
        found.sort_unstable();
        found.dedup();
        // The result is used as a filter, which has a maximum number of values.
        found.truncate(FILTER_VALUES_MAX.max(names.len()));
        Ok(found)
    }

    fn spellings(
        &self,
        namespace: &Namespace,
        in_any_case: &[String],
    ) -> Result<Vec<String>, TantivyError> {
        let prefix = tool_tag(namespace, "");
        let mut found = Vec::new();
        for segment in self.published().searcher.segment_readers() {
            let index = segment.inverted_index(self.fields.tags)?;
            let mut terms = index.terms().range().ge(prefix.as_bytes()).into_stream()?;
            for _ in 0..COMPARED_MAX {
                if !terms.advance() {
                    break;
                }
                let Some(name) = terms.key().strip_prefix(prefix.as_bytes()) else {
                    break;
                };
                let name = String::from_utf8_lossy(name);
                if in_any_case.contains(&name.to_lowercase()) {
                    found.push(name.into_owned());
                }
            }
        }
        Ok(found)
    }
}

/// Returns the name between double quotes, or `None` when there are no quotes.
fn unquoted(name: &str) -> Option<&str> {
    name.strip_prefix('"')?.strip_suffix('"')
}
