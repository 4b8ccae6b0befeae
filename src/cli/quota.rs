//! `serve --quota`: the most that each namespace may store.

use std::str::FromStr;

use super::{error::ClientError, serve::size};
use treering_domain::{Namespace, Quota, Quotas};

/// Means every namespace that is not named.
const OTHERS: &str = "*";
/// Largest limit: JSON clients cannot represent larger integers exactly, and no store is that
/// large.
const BOUND_MAX: u64 = (1 << 53) - 1;
/// Means no limit.
const NONE: &str = "none";

/// A quota on the command line: `NAMESPACE=BYTES[,CONVERSATIONS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuotaArg {
    /// `None` for all namespaces that are not named.
    namespace: Option<Namespace>,
    quota: Quota,
}

impl FromStr for QuotaArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, quota) = text.split_once('=').ok_or(
            "expected NAMESPACE=BYTES,CONVERSATIONS, for example team-a=10GiB,1000; * means every \
             other namespace, none means no limit",
        )?;
        let namespace = match name {
            OTHERS => None,
            name => Some(Namespace::new(name).map_err(|error| error.to_string())?),
        };
        if namespace.as_ref().is_some_and(Namespace::is_reserved) {
            return Err(format!(
                "{name} belongs to the server itself and cannot have a quota"
            ));
        }
        let (bytes, conversations) = quota.split_once(',').unwrap_or((quota, NONE));
        let quota = Quota {
            bytes: bound(bytes, size)?,
            conversations: bound(conversations, |text| {
                let number = text.parse::<u64>();
                number.map_err(|_| {
                    format!("`{text}` is neither a number of conversations nor `none`")
                })
            })?,
        };
        Ok(Self { namespace, quota })
    }
}

fn bound(
    text: &str,
    read: impl FnOnce(&str) -> Result<u64, String>,
) -> Result<Option<u64>, String> {
    match text {
        NONE => Ok(None),
        text => match read(text)? {
            number if number > BOUND_MAX => Err(format!(
                "{text} exceeds {BOUND_MAX}: use `none` for no limit"
            )),
            number => Ok(Some(number)),
        },
    }
}

/// Combines the quotas.
///
/// # Errors
/// [`ClientError::Usage`] if a namespace has two.
pub(crate) fn quotas(typed: &[QuotaArg]) -> Result<Quotas, ClientError> {
    let mut quotas = Quotas::default();
    let mut others = None;
    for QuotaArg { namespace, quota } in typed {
        let before = match namespace {
            Some(namespace) => quotas.named.insert(namespace.clone(), *quota),
            None => others.replace(*quota),
        };
        if before.is_some() {
            let name = namespace.as_ref().map_or(OTHERS, Namespace::as_str);
            return Err(ClientError::Usage {
                what: format!("--quota: {name} is given twice"),
                hint: "give bytes and conversations of a namespace in one --quota".into(),
            });
        }
    }
    quotas.others = others.unwrap_or_default();
    Ok(quotas)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A misread quota locks a team out, or lets one team fill the disk.
    #[test]
    fn quotas_are_parsed() {
        let namespace = |name| Namespace::new(name).unwrap();
        let typed = ["a=1MiB,7", "b=none,0", "c=0", "*=2GiB"].map(|text| text.parse().unwrap());
        let read = quotas(&typed).unwrap();
        let of = |name| {
            let Quota {
                bytes,
                conversations,
            } = read.of(&namespace(name));
            (bytes, conversations)
        };
        assert_eq!(of("a"), (Some(1 << 20), Some(7)));
        assert_eq!(of("b"), (None, Some(0)));
        assert_eq!(of("c"), (Some(0), None));
        assert_eq!(of("d"), (Some(2 << 30), None));
        assert_eq!(of("_system"), (None, None));
    }

    // An invalid quota must be an error, not an unlimited one.
    #[test]
    fn invalid_quota_is_refused() {
        for wrong in [
            "",
            "a",
            "a=",
            "a=1,",
            "a=,1",
            "a=-1",
            "a=1,-1",
            "a=1,2,3",
            "a=1TB",
            "=1",
            "_system=1",
            "**=1",
            "a=99999999999999999999",
            "a=18446744073709551615GiB",
            "a=1,18446744073709551616",
            "a=9007199254740992",
            "a=1,9007199254740992",
        ] {
            assert!(wrong.parse::<QuotaArg>().is_err(), "{wrong}");
        }
        let largest: QuotaArg = "a=9007199254740991,9007199254740991".parse().unwrap();
        assert_eq!(largest.quota.bytes, Some(BOUND_MAX));
        for twice in [["a=1", "a=1"], ["*=1", "*=none"]] {
            let typed = twice.map(|text| text.parse().unwrap());
            assert!(quotas(&typed).is_err(), "{twice:?}");
        }
    }
}
