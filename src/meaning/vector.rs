//! Stored vectors: one byte per dimension, and one scale factor.
//!
//! A vector is scaled to length 1, and each dimension is rounded to one of 255 steps between plus
//! and minus the largest. On the passages of `docs/MEANING.md`, rounding replaces at most 1 in 100
//! of the ten nearest passages. Rounding uses no parameters learned from other vectors, so a stored
//! vector depends only on its text and the model.

/// Maximum number of dimensions of a vector.
pub const DIMENSIONS_MAX: usize = 4_096;
/// The largest step of a stored dimension.
const STEPS: f32 = 127.0;
/// The largest step of a query's dimension. The sum of [`DIMENSIONS_MAX`] products fits in 32 bits.
const QUERY_STEPS: f32 = 2_047.0;

/// Why a vector cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorError {
    /// It has no dimensions, or more than [`DIMENSIONS_MAX`].
    #[error("a vector has {dimensions} dimensions; 1 to {DIMENSIONS_MAX} are allowed")]
    Dimensions {
        /// How many.
        dimensions: usize,
    },
    /// All of it is 0, or a dimension is not a number.
    #[error("a vector is all zeros, or has a value that is not a number")]
    NoDirection,
}

/// A passage's vector, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredVector {
    pub(crate) scale: f32,
    pub(crate) codes: Vec<u8>,
}

impl StoredVector {
    /// Rounds a vector.
    ///
    /// # Errors
    /// [`VectorError`].
    pub fn new(vector: &[f32]) -> Result<Self, VectorError> {
        let (scale, steps) = rounded(vector, STEPS)?;
        // A step has 8 bits.
        let codes = steps.map(|step| (step as i8).to_le_bytes()[0]).collect();
        Ok(Self { scale, codes })
    }

    /// Returns the number of dimensions.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.codes.len()
    }
}

/// The vector of a search query.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryVector {
    scale: f32,
    steps: Vec<i16>,
}

impl QueryVector {
    /// Rounds a vector, to finer steps than stored ones.
    ///
    /// # Errors
    /// [`VectorError`].
    pub fn new(vector: &[f32]) -> Result<Self, VectorError> {
        let (scale, steps) = rounded(vector, QUERY_STEPS)?;
        let steps = steps.map(|step| step as i16).collect();
        Ok(Self { scale, steps })
    }

    /// Returns the number of dimensions.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.steps.len()
    }

    /// Returns the values of the vector, scaled to length 1.
    pub(crate) fn values(&self) -> impl Iterator<Item = f32> {
        self.steps.iter().map(|step| f32::from(*step) * self.scale)
    }

    /// Returns the similarity to a stored vector with the same number of dimensions: the cosine of
    /// their angle, from -1 to 1.
    #[inline(always)]
    pub(crate) fn similarity(&self, scale: f32, codes: &[u8]) -> f32 {
        let products = codes
            .iter()
            .zip(&self.steps)
            .map(|(code, step)| i32::from(i8::from_le_bytes([*code])) * i32::from(*step));
        let sum: i32 = products.sum();
        sum as f32 * scale * self.scale
    }
}

/// Returns the values of a stored vector.
pub(crate) fn values(scale: f32, codes: &[u8]) -> impl Iterator<Item = f32> {
    codes
        .iter()
        .map(move |code| f32::from(i8::from_le_bytes([*code])) * scale)
}

/// Scales a vector to length 1. Returns the scale factor and the rounded steps.
fn rounded(vector: &[f32], steps: f32) -> Result<(f32, impl Iterator<Item = f32>), VectorError> {
    let dimensions = vector.len();
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        return Err(VectorError::Dimensions { dimensions });
    }
    let squares: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let length = squares.sqrt() as f32;
    let largest = vector
        .iter()
        .fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let factor = steps / largest;
    if !(length.is_normal() && factor.is_normal()) {
        return Err(VectorError::NoDirection);
    }
    let stepped = vector.iter().map(move |x| (x * factor).round());
    Ok((largest / steps / length, stepped))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(a: &[f32], b: &[f32]) -> f32 {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
    }

    // Rounding must not change which passage is nearer.
    #[test]
    fn similarity_is_nearly_the_cosine() {
        let mut random = fastrand::Rng::with_seed(7);
        for dimensions in [1, 3, 384, DIMENSIONS_MAX] {
            let mut vector =
                || -> Vec<f32> { (0..dimensions).map(|_| random.f32() * 6.0 - 3.0).collect() };
            let (a, b) = (vector(), vector());
            let stored = StoredVector::new(&a).unwrap();
            let query = QueryVector::new(&b).unwrap();
            let similar = query.similarity(stored.scale, &stored.codes);
            let exact = cosine(&a, &b);
            assert!(
                (similar - exact).abs() < 0.01,
                "{dimensions}: {similar} {exact}"
            );
        }
        // The largest products do not overflow.
        let ones = vec![1.0; DIMENSIONS_MAX];
        let stored = StoredVector::new(&ones).unwrap();
        let query = QueryVector::new(&ones).unwrap();
        assert!((query.similarity(stored.scale, &stored.codes) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn vectors_without_direction_are_refused() {
        for vector in [
            &[0.0, 0.0][..],
            &[f32::NAN, 1.0],
            &[f32::INFINITY],
            &[1e-42],
        ] {
            assert_eq!(StoredVector::new(vector), Err(VectorError::NoDirection));
        }
        let none = VectorError::Dimensions { dimensions: 0 };
        assert_eq!(QueryVector::new(&[]), Err(none));
    }
}
