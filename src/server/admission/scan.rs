//! Computes the memory that a message will take, from its bytes, before it is decoded.
//!
//! The result is never below what decoding allocates: repeated occurrences of a field are counted
//! each time, and unreadable data ends the message here as in the decoder.

use super::shape::{Field, Kind, Shapes};
use crate::wire::{DEPTH_MAX, MessageRest};

/// Decoding takes more memory than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecodeCostExceeded;

/// Returns the memory that decoding takes, in bytes.
///
/// # Errors
/// [`DecodeCostExceeded`] as soon as it exceeds `max`.
pub(super) fn cost(
    shapes: &Shapes,
    message: usize,
    bytes: &[u8],
    max: usize,
) -> Result<usize, DecodeCostExceeded> {
    let mut scan = Scan {
        shapes,
        cost: shapes.get(message).size,
        max,
    };
    scan.message(message, bytes, 0)?;
    Ok(scan.cost)
}

struct Scan<'a> {
    shapes: &'a Shapes,
    cost: usize,
    max: usize,
}

impl Scan<'_> {
    fn add(&mut self, bytes: usize) -> Result<(), DecodeCostExceeded> {
        self.cost = self.cost.saturating_add(bytes);
        if self.cost > self.max {
            return Err(DecodeCostExceeded);
        }
        Ok(())
    }

    fn message(
        &mut self,
        message: usize,
        bytes: &[u8],
        depth: usize,
    ) -> Result<(), DecodeCostExceeded> {
        let shapes = self.shapes;
        let shape = shapes.get(message);
        let mut rest = MessageRest(bytes);
        while let Some(key) = rest.varint() {
            let field = shape.field(key >> 3);
            match key & 7 {
                2 => {
                    let Some(content) = rest.content() else {
                        return Ok(());
                    };
                    if let Some(field) = field {
                        self.content(field, content, depth)?;
                    }
                }
                wire => {
                    if rest.skip(key >> 3, wire).is_none() {
                        return Ok(());
                    }
                    if let Some(field) = field {
                        self.add(field.each)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn content(
        &mut self,
        field: &Field,
        content: &[u8],
        depth: usize,
    ) -> Result<(), DecodeCostExceeded> {
        match field.kind {
            Kind::Text => self.add(field.each + content.len()),
            Kind::Message(inner) => {
                self.add(field.each)?;
                if depth < DEPTH_MAX {
                    self.message(inner, content, depth + 1)?;
                }
                Ok(())
            }
            // Packed: a number ends at a byte without the high bit.
            Kind::Varint => {
                let count = content.iter().filter(|byte| **byte < 0x80).count();
                self.add(count.saturating_mul(field.each))
            }
            Kind::Fixed(width) => self.add((content.len() / width).saturating_mul(field.each)),
        }
    }
}
