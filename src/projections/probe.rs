//! Decodes arbitrary bytes as rows of the projections, for fuzz targets and property tests.

use serde::{Serialize, de::DeserializeOwned};

use super::{
    apply::CountsRow,
    chunk::Chunk,
    codec::{self, CreatedRow, KeyRow},
    conversation_head::ConversationHead,
    error::ProjectionsError,
    find_events::LargeRow,
};
use treering_domain::{BranchId, BranchState, ConversationKey, Revision};

/// Number of row kinds that [`row`] knows.
pub const KINDS: u8 = 8;

/// The result of decoding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The bytes are not a row of the given kind.
    Refused,
    /// The bytes are such a row, and encoding and decoding it again gives the same row.
    Read,
    /// The bytes are such a row, but encoding and decoding it again gives a different one.
    Changed,
}

/// Decodes bytes as the value of a row of a kind, without its checksum.
#[must_use]
pub fn row(kind: u8, value: &[u8]) -> ProbeOutcome {
    let probed = match kind {
        0 => tip(value),
        1 => again::<CreatedRow>(value),
        // A snapshot has the same type.
        2 => again::<BranchState>(value),
        3 => chunk(value),
        4 => again::<(BranchId, String)>(value),
        5 => again::<KeyRow>(value),
        6 => again::<CountsRow>(value),
        _ => again::<LargeRow>(value),
    };
    probed.unwrap_or(ProbeOutcome::Refused)
}

fn tip(value: &[u8]) -> Result<ProbeOutcome, ProjectionsError> {
    let tip = ConversationHead::of(value)?;
    let id = ConversationKey::default();
    let (head, main, _) = (tip.head()?, tip.main()?, tip.entries(id)?);
    let chunk = tip.chunk()?;
    let mut bytes = Vec::new();
    super::conversation_head::write(&mut bytes, &head, &chunk, |bytes| {
        codec::encode(&main, bytes)
    })?;
    let written = ConversationHead::of(&bytes)?;
    let same = written.main()? == main && written.head()?.head() == head.head();
    Ok(if same {
        ProbeOutcome::Read
    } else {
        ProbeOutcome::Changed
    })
}

fn chunk(value: &[u8]) -> Result<ProbeOutcome, ProjectionsError> {
    let refused = || ProjectionsError::damaged("no chunk");
    let id = ConversationKey::default();
    // The chunk number, which is normally in the key.
    let number = Revision::NONE.0;
    let entries = Chunk::entries(value, id, number).ok_or_else(refused)?;
    let mut written = Chunk::new();
    if !entries.iter().all(|entry| written.push(entry)) {
        // More entries than a chunk holds, or a repeated offset.
        return Ok(ProbeOutcome::Refused);
    }
    let read = Chunk::entries(written.as_bytes(), id, number);
    Ok(match read {
        Some(read) if read == entries => ProbeOutcome::Read,
        _ => ProbeOutcome::Changed,
    })
}

fn again<T: Serialize + DeserializeOwned>(value: &[u8]) -> Result<ProbeOutcome, ProjectionsError> {
    let bytes = |value: &T| {
        let mut bytes = Vec::new();
        codec::encode(value, &mut bytes).map(|()| bytes)
    };
    let first = bytes(&codec::decode_value(value)?)?;
    let second = bytes(&codec::decode_value(&first)?)?;
    let same = first == second;
    Ok(if same {
        ProbeOutcome::Read
    } else {
        ProbeOutcome::Changed
    })
}

#[cfg(test)]
mod tests {
    use allocation_counter::measure;
    use proptest::prelude::*;

    use super::*;
    use treering_domain::{
        BranchName, Config, ContentHash, ConversationId, ConversationInfo, EventRef, Position,
    };

    /// Memory allowed for each byte of input: an empty text takes eight bytes in a row, and 24 and
    /// more in a map.
    const EACH_BYTE_MAX: u64 = 64;
    /// Memory allowed for map nodes and an error.
    const BASE_BYTES_MAX: u64 = 4 << 10;

    fn encoded(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::encode(value, &mut bytes).unwrap();
        bytes
    }

    fn branch() -> BranchState {
        let at = EventRef {
            conversation: ConversationId::generate(),
            revision: Revision(7),
        };
        let text = || "some text".to_owned();
        BranchState {
            name: BranchName::new("some-name").unwrap(),
            config: Config {
                model_id: text(),
                mode: text(),
                parameters: [(text(), text())].into(),
            },
            preamble: vec![at; 3],
            active_context: [(text(), at), ("another".to_owned(), at)].into(),
            system_prompt: Some(at),
            ..BranchState::root()
        }
    }

    /// Returns a row of each kind.
    fn rows() -> Vec<(u8, Vec<u8>)> {
        let text = || "some text".to_owned();
        let info = ConversationInfo {
            title: text(),
            labels: [(text(), text())].into(),
            parent: None,
            shares_history: false,
            policies: [(text(), text())].into(),
            source: text(),
            source_id: text(),
            root: ConversationId::generate(),
            sub_context_depth: 0,
            metadata: [(text(), "1".to_owned())].into(),
        };
        let created = (
            treering_domain::Namespace::default(),
            Position::local(3),
            treering_domain::TimestampMicros(5),
            treering_domain::TimestampMicros(4),
            info,
        );
        let mut chunk = Chunk::new();
        for n in 1..4 {
            assert!(chunk.push(&crate::EventEntry {
                conversation: ConversationKey::default(),
                revision: Revision(n),
                branch: BranchId::MAIN,
                kind: 28,
                offset: n * 5,
            }));
        }
        let head = (
            (Revision(3), ContentHash([7; 32]), Position::local(9)),
            (BranchId::MAIN, 1_u64, false),
            treering_domain::TimestampMicros(5),
            treering_domain::TimestampMicros(4),
        );
        // No damage.
        let head = [encoded(&head), encoded(&None::<u8>)].concat();
        let mut tip = Vec::new();
        tip.extend_from_slice(&(head.len() as u16).to_le_bytes());
        tip.extend_from_slice(&(chunk.as_bytes().len() as u16).to_le_bytes());
        tip.extend_from_slice(&head);
        tip.extend_from_slice(chunk.as_bytes());
        tip.extend_from_slice(&encoded(&branch()));
        let attributes = [("color".to_owned(), "red".to_owned())].into();
        let large: LargeRow = ("state".to_owned(), "a/1".to_owned(), attributes);
        let ends_at = Some(treering_domain::TimestampMicros(7));
        let key: KeyRow = (ContentHash([1; 32]), Some([2; 16]), 9, 2, ends_at);
        let counts: CountsRow = (2, 3, [(28, 7), (29, 9)].into(), 5, 1);
        vec![
            (0, tip),
            (1, encoded(&created)),
            (2, encoded(&branch())),
            (3, chunk.as_bytes().to_vec()),
            (4, encoded(&(BranchId::MAIN, "bash"))),
            (5, encoded(&key)),
            (6, encoded(&counts)),
            (7, encoded(&large)),
        ]
    }

    fn probe(kind: u8, value: &[u8]) -> ProbeOutcome {
        let mut probed = ProbeOutcome::Refused;
        let bytes = measure(|| probed = row(kind, value)).bytes_max;
        let max = BASE_BYTES_MAX + EACH_BYTE_MAX * value.len() as u64;
        assert!(bytes <= max, "{bytes} bytes for {}: {value:?}", value.len());
        assert_ne!(probed, ProbeOutcome::Changed, "{value:?}");
        probed
    }

    // Eight damaged bytes could claim a text of exabytes, which ended the process. Each place in
    // each row claims a large length in turn.
    #[test]
    fn false_lengths_are_not_trusted() {
        for (kind, row) in rows() {
            assert_eq!(probe(kind, &row), ProbeOutcome::Read, "kind {kind}");
            for at in 0..row.len().saturating_sub(8) {
                for claim in [u64::MAX, 1 << 62, 1 << 40, 1 << 30, 1 << 20, 300] {
                    let mut row = row.clone();
                    row[at..at + 8].copy_from_slice(&claim.to_le_bytes());
                    probe(kind, &row);
                }
            }
            for len in 0..row.len() {
                probe(kind, &row[..len]);
            }
        }
    }

    proptest! {
        // Any bytes are decoded or refused, with bounded memory.
        #[test]
        fn any_bytes_are_decoded_or_refused(
            kind in 0..KINDS,
            bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            probe(kind, &bytes);
        }

        // Rows with some changed bytes reach more code than random bytes.
        #[test]
        fn changed_rows_are_decoded_or_refused(
            kind in 0..KINDS,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let (kind, mut bytes) = rows().swap_remove(usize::from(kind));
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            probe(kind, &bytes);
        }
    }

    // The fuzz targets start from these seeds; they must be readable today.
    #[test]
    fn fuzz_seeds_are_decoded() {
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/fuzz/view_row"
        );
        if std::env::var_os("TREERING_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(folder).unwrap();
            for (kind, row) in rows() {
                let bytes = [&[kind][..], &row].concat();
                std::fs::write(format!("{folder}/row{kind}"), bytes).unwrap();
            }
        }
        for kind in 0..KINDS {
            let bytes = std::fs::read(format!("{folder}/row{kind}")).unwrap();
            assert_eq!(bytes[0], kind);
            assert_eq!(probe(kind, &bytes[1..]), ProbeOutcome::Read, "kind {kind}");
        }
    }
}
