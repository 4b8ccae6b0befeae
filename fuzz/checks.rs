//! What must hold for any bytes: they are read or refused, never a panic, and what
//! is read can be written and read again. Used by the fuzz targets and by the
//! ordinary tests.

use bytes::Bytes;
use treering::{
    domain::EventKind,
    import::{
        ImportedConversation,
        claude_code::{Session, import_session},
        format::Format,
        openai_chat::import_line,
        session::ToolSession,
    },
    log::{
        EncodedFrame,
        block::{self as blocks, Packer},
        frame as frames,
    },
    projections::probe,
    proto::body as codec,
    search::syntax,
};

/// A frame: its first offset (8 bytes), then its bytes.
pub fn frame(data: &[u8]) {
    let Some((offset, bytes)) = data.split_first_chunk::<8>() else {
        return;
    };
    // The last bytes of any frame: a check sum that fits, so that the fuzzer gets
    // behind it.
    let frame = EncodedFrame {
        first_offset: u64::from_le_bytes(*offset),
        count: 1,
        bytes: with_right_sum(bytes),
        dictionary: None,
    };
    let Ok(decoded) = frames::decode(&frame) else {
        return;
    };
    let records: Vec<_> = (frame.first_offset..=decoded.last_offset())
        .map_while(|offset| decoded.record(offset).cloned())
        .collect();
    let Ok(again) = frames::encode_group(frame.first_offset, &records) else {
        return;
    };
    let read: Vec<_> = again
        .iter()
        .flat_map(|frame| {
            let decoded = frames::decode(frame).expect("what was written can be read");
            let offsets = frame.first_offset..=frame.last_offset();
            let records = offsets.map(move |offset| decoded.record(offset).cloned());
            records.collect::<Vec<_>>()
        })
        .collect();
    let wanted: Vec<_> = records.into_iter().map(Some).collect();
    assert!(read == wanted, "records change when they are written again");
}

/// A block without a dictionary: its first offset (8 bytes), then its bytes.
pub fn block(data: &[u8]) {
    let Some((offset, bytes)) = data.split_first_chunk::<8>() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if bytes.len() < blocks::HEADER_BYTES {
        return;
    }
    // It says itself where it is and how many records it has, and a check sum that
    // fits lets the fuzzer get behind it.
    bytes[8..16].copy_from_slice(offset);
    let sum = crc32c(&[&bytes[..44], &bytes[48..]].concat());
    bytes[44..48].copy_from_slice(&sum.to_le_bytes());
    let block = EncodedFrame {
        first_offset: u64::from_le_bytes(*offset),
        count: u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]),
        bytes: bytes.into(),
        dictionary: None,
    };
    let Ok(decoded) = blocks::decode(&block) else {
        return;
    };
    let mut packer = Packer::new(block.first_offset, None).expect("zstd has memory");
    let mut again = Vec::new();
    for record in &decoded.records {
        let _sound = record.is_sound();
        match packer.push(record.clone()) {
            Ok(full) => again.extend(full),
            Err(_) => return,
        }
    }
    let Ok(last) = packer.finish() else { return };
    again.extend(last);
    let read: Vec<_> = again
        .iter()
        .flat_map(|block| {
            let decoded = blocks::decode(block).expect("what was written can be read");
            decoded.records
        })
        .collect();
    assert!(
        read == decoded.records,
        "records change when they are written again"
    );
}

/// Bytes 28 to 31 of a frame are the CRC32C of what is before and behind them.
fn with_right_sum(bytes: &[u8]) -> Bytes {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 32 {
        let sum = crc32c(&[&bytes[..28], &bytes[32..]].concat());
        bytes[28..32].copy_from_slice(&sum.to_le_bytes());
    }
    bytes.into()
}

/// CRC32C, bit by bit: the targets need no more than that.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
        })
    })
}

/// A row of the views: its kind (1 byte), then its value.
pub fn view_row(data: &[u8]) {
    if let Some((kind, value)) = data.split_first() {
        let probed = probe::row(kind % probe::KINDS, value);
        assert!(
            probed != probe::ProbeOutcome::Changed,
            "a row changes when it is written again"
        );
    }
}

/// A body: its kind (2 bytes), then protobuf.
pub fn body(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first_chunk::<2>() else {
        return;
    };
    let Some(kind) = EventKind::from_number(u16::from_le_bytes(*kind)) else {
        return;
    };
    let Ok(body) = codec::decode(kind, &Bytes::copy_from_slice(bytes)) else {
        return;
    };
    assert_eq!(body.kind(), kind);
    let again = codec::encode(&body);
    let read = codec::decode(kind, &again).expect("what was written can be read");
    // A number that is none is not equal to itself: compared as bytes.
    assert!(
        codec::encode(&read) == again,
        "{kind} changes when it is written again"
    );
}

/// A line of an OpenAI chat import.
pub fn openai_line(data: &[u8]) -> Vec<ImportedConversation> {
    match import_line(data) {
        Ok(imported) => {
            assert_can_be_appended(&imported);
            vec![imported]
        }
        Err(_) => Vec::new(),
    }
}

/// A session: its lines; those behind an empty line are a sub-agent's.
pub fn claude_session(data: &[u8]) -> Vec<ImportedConversation> {
    let lines = |bytes: &[u8]| -> Vec<Bytes> {
        let lines = bytes.split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        lines.map(Bytes::copy_from_slice).collect()
    };
    let cut = data.windows(2).position(|two| two == b"\n\n");
    let (own, agent) = data.split_at(cut.unwrap_or(data.len()));
    let mut session = Session {
        id: "session".to_owned(),
        lines: lines(own),
        ..Session::default()
    };
    if !agent.is_empty() {
        session.agents.push(("a1".to_owned(), lines(agent)));
    }
    let imported = import_session(&session).unwrap_or_default();
    imported.iter().for_each(assert_can_be_appended);
    imported
}

/// The lines of a session of one of the tools that keep one in a file; the first byte says
/// which.
pub fn tool_session(data: &[u8]) -> Vec<ImportedConversation> {
    const FORMATS: [Format; 4] = [
        Format::Codex,
        Format::GeminiCli,
        Format::OpenCode,
        Format::Pi,
    ];
    let Some((which, data)) = data.split_first() else {
        return Vec::new();
    };
    let lines = data.split(|byte| *byte == b'\n');
    let session = ToolSession {
        format: FORMATS[usize::from(*which) % FORMATS.len()],
        name: "session".to_owned(),
        lines: lines
            .filter(|line| !line.is_empty())
            .map(Bytes::copy_from_slice)
            .collect(),
        unfinished: Vec::new(),
    };
    let imported: Vec<_> = session.import().into_iter().collect();
    imported.iter().for_each(assert_can_be_appended);
    imported
}

/// What an importer makes are events that the engine takes.
fn assert_can_be_appended(imported: &ImportedConversation) {
    let first = imported.events.first().expect("a conversation has events");
    assert_eq!(first.body.kind(), EventKind::ConversationCreated);
    for event in &imported.events {
        let kind = event.body.kind();
        let bytes = codec::encode(&event.body);
        let read = codec::decode(kind, &bytes);
        let read = read.unwrap_or_else(|fault| panic!("{kind} cannot be read back: {fault}"));
        assert!(read == event.body, "{kind} is not what it was");
    }
}

/// A search query.
pub fn query(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        // An error is an answer.
        let _answer = syntax::parse(text);
    }
}
