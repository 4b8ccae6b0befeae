//! Reads protobuf messages without decoding them.

/// Deepest nesting that is read; the decoder refuses more.
pub(super) const DEPTH_MAX: usize = 100;

/// The rest of a message. Its methods return `None` when it cannot be read further.
pub(super) struct MessageRest<'a>(pub(super) &'a [u8]);

impl<'a> MessageRest<'a> {
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for (index, byte) in self.0.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                self.0 = &self.0[index + 1..];
                return Some(value);
            }
        }
        None
    }

    pub(super) fn content(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (content, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(content)
    }

    /// Skips a value that is not length-delimited.
    pub(super) fn skip(&mut self, number: u64, wire: u64) -> Option<()> {
        match wire {
            0 => self.varint().map(|_| ()),
            1 => self.pass(8),
            5 => self.pass(4),
            3 => self.skip_group(number),
            _ => None,
        }
    }

    fn pass(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    /// Skips an unknown group with its content; proto3 has no groups.
    fn skip_group(&mut self, number: u64) -> Option<()> {
        let mut open = vec![number];
        while let Some(last) = open.last().copied() {
            let key = self.varint()?;
            match (key >> 3, key & 7) {
                (number, 3) if open.len() < DEPTH_MAX => open.push(number),
                (number, 4) if number == last => {
                    open.pop();
                }
                (_, 2) => {
                    self.content()?;
                }
                (_, 3 | 4) => return None,
                (number, wire) => self.skip(number, wire)?,
            }
        }
        Some(())
    }
}

/// Returns each value of a length-delimited field of a message, in order, until the message cannot
/// be read further.
pub(super) fn contents(message: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = MessageRest(message);
    std::iter::from_fn(move || {
        loop {
            let key = rest.varint()?;
            let number = u32::try_from(key >> 3).ok()?;
            match key & 7 {
                2 => return Some((number, rest.content()?)),
                wire => rest.skip(key >> 3, wire)?,
            }
        }
    })
}

/// Returns the text at a path of field numbers, unless it is missing, empty or not UTF-8. Of
/// several, the last one counts, as in the decoder.
pub(super) fn text<'m>(message: &'m [u8], path: &[u32]) -> Option<&'m str> {
    let (first, below) = path.split_first()?;
    let found = contents(message).filter(|(number, _)| number == first);
    let texts = found.filter_map(|(_, content)| match below {
        [] => std::str::from_utf8(content).ok(),
        _ => text(content, below),
    });
    texts.last().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use treering_proto::pb;

    // A name that is read differently here and in the decoder sends a call to the wrong shard.
    #[test]
    fn texts_are_read_as_the_decoder_reads_them() {
        let request = pb::ReadRequest {
            source: Some(pb::read_request::Source::Branch(pb::BranchSource {
                conversation_id: "c".into(),
                branch: "b".into(),
            })),
            from_revision: 7,
            limit: 300,
            from_conversation: "other".into(),
            ..pb::ReadRequest::default()
        };
        let bytes = request.encode_to_vec();
        assert_eq!(text(&bytes, &[1, 1]), Some("c"));
        assert_eq!(text(&bytes, &[40]), Some("other"));
        assert_eq!(text(&bytes, &[2, 1]), None);
        assert_eq!(text(&bytes[..3], &[40]), None);
        let twice = [
            pb::GuidanceRequest::default(),
            pb::GuidanceRequest::default(),
        ];
        let twice: Vec<u8> = twice
            .into_iter()
            .zip(["first", "last"])
            .flat_map(|(request, id)| {
                let conversation_id = id.to_owned();
                pb::GuidanceRequest {
                    conversation_id,
                    ..request
                }
                .encode_to_vec()
            })
            .collect();
        assert_eq!(text(&twice, &[1]), Some("last"));
    }
}
