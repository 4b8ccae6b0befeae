//! Conditions on items and paths.

use serde_json::Value;

use super::name::ANY_LABEL;

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal JSON; numbers are compared by value.
    Equal,
    /// Different JSON, or missing.
    NotEqual,
    /// Greater. Two texts are compared as texts, other values as numbers; anything else never
    /// matches.
    Greater,
    /// See [`Comparison::Greater`].
    GreaterOrEqual,
    /// See [`Comparison::Greater`].
    Less,
    /// See [`Comparison::Greater`].
    LessOrEqual,
}

/// A condition on an item's value.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemCondition {
    /// Field names from the value's outermost object to the compared field. A missing field is
    /// null.
    pub field: Vec<String>,
    /// The comparison.
    pub comparison: Comparison,
    /// The value to compare with.
    pub value: Value,
}

impl ItemCondition {
    /// Returns whether a value meets the condition.
    #[must_use]
    pub fn fits(&self, value: &Value) -> bool {
        let mut found = Some(value);
        for name in &self.field {
            found = found.and_then(|value| value.get(name));
        }
        let found = found.unwrap_or(&Value::Null);
        match self.comparison {
            Comparison::Equal => same(found, &self.value),
            Comparison::NotEqual => !same(found, &self.value),
            Comparison::Greater => ordered(found, &self.value, |o| o.is_gt()),
            Comparison::GreaterOrEqual => ordered(found, &self.value, |o| o.is_ge()),
            Comparison::Less => ordered(found, &self.value, |o| o.is_lt()),
            Comparison::LessOrEqual => ordered(found, &self.value, |o| o.is_le()),
        }
    }
}

/// Returns whether two values are equal. 1 equals 1.0, also within lists and objects.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(name, one): (&String, &Value)| {
                other.get(name).is_some_and(|other| same(one, other))
            };
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}

fn ordered(one: &Value, other: &Value, is: impl Fn(std::cmp::Ordering) -> bool) -> bool {
    if let (Value::String(one), Value::String(other)) = (one, other) {
        return is(one.cmp(other));
    }
    let order = number(one)
        .zip(number(other))
        .and_then(|(one, other)| one.partial_cmp(&other));
    order.is_some_and(is)
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Bool(is) => Some(f64::from(*is)),
        _ => None,
    }
}

/// A condition on a path's labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// The path begins with these labels.
    Prefix(Vec<String>),
    /// The path ends with these labels.
    Suffix(Vec<String>),
}

impl PathMatch {
    /// Returns whether a path meets the condition. The label `*` matches any label.
    #[must_use]
    pub fn fits(&self, path: &[String]) -> bool {
        let (Self::Prefix(wanted) | Self::Suffix(wanted)) = self;
        let Some(rest) = path.len().checked_sub(wanted.len()) else {
            return false;
        };
        let part = match self {
            Self::Prefix(_) => &path[..wanted.len()],
            Self::Suffix(_) => &path[rest..],
        };
        let mut labels = wanted.iter().zip(part);
        labels.all(|(wanted, label)| wanted == ANY_LABEL || wanted == label)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // Conditions must compare as frameworks expect. Each line: field, comparison, operand, and
    // whether it matches.
    #[test]
    fn conditions_compare_values() {
        use Comparison::*;
        let value = json!({
            "n": 3, "f": 3.5, "t": "b", "yes": true, "none": null,
            "in": {"n": 1, "list": [1, {"a": 2}]}, "digits": "10"
        });
        for (field, comparison, with, fits) in [
            ("n", Equal, json!(3), true),
            ("n", Equal, json!(3.0), true),
            ("n", Equal, json!("3"), false),
            ("n", NotEqual, json!(4), true),
            ("missing", Equal, json!(null), true),
            ("missing", NotEqual, json!(1), true),
            ("missing", Greater, json!(1), false),
            ("none", Less, json!(1), false),
            ("n", Greater, json!(2), true),
            ("n", Greater, json!(3), false),
            ("n", GreaterOrEqual, json!(3), true),
            ("f", Less, json!(4), true),
            ("f", LessOrEqual, json!(3.4), false),
            ("t", Greater, json!("a"), true),
            ("t", Less, json!(1), false),
            ("digits", Greater, json!(9), true),
            ("digits", Greater, json!("9"), false),
            ("yes", Equal, json!(true), true),
            ("in.n", Equal, json!(1), true),
            ("in.list", Equal, json!([1.0, {"a": 2}]), true),
            ("in.list", Equal, json!([1]), false),
            ("in", Equal, json!({"list": [1, {"a": 2}], "n": 1}), true),
            ("n.deeper", Equal, json!(3), false),
        ] {
            let condition = ItemCondition {
                field: field.split('.').map(str::to_owned).collect(),
                comparison,
                value: with,
            };
            assert_eq!(condition.fits(&value), fits, "{condition:?}");
        }
    }

    #[test]
    fn path_prefix_and_suffix_match_with_wildcards() {
        let path = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        for (wanted, fits_at) in [
            ("a", [true, false]),
            ("c", [false, true]),
            ("a/*", [true, false]),
            ("*/c", [false, true]),
            ("a/b/c", [true, true]),
            ("*/*/*", [true, true]),
            ("*/*/*/*", [false, false]),
        ] {
            let at = [
                PathMatch::Prefix(path(wanted)),
                PathMatch::Suffix(path(wanted)),
            ];
            assert_eq!(at.map(|at| at.fits(&path("a/b/c"))), fits_at, "{wanted}");
        }
    }
}
