//! The allocations that stay in full color while the others are dimmed.

/// How much of the paper covers what is not marked, of 255.
const VEIL: u8 = 205;

/// One bit for each allocation of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marked {
    bits: Vec<u8>,
    /// How many are marked.
    pub n: u64,
}

impl Marked {
    /// Those whose bits are set, lowest first.
    pub fn new(bits: Vec<u8>) -> Self {
        let n = bits.iter().map(|byte| u64::from(byte.count_ones())).sum();
        Self { bits, n }
    }

    /// True for an allocation that is marked.
    pub fn has(&self, id: u32) -> bool {
        self.bits.get(id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1)
    }

    /// Pixels to lay over a picture with these ids, RGBA: none over what is marked and where nothing is, `blank` being
    /// the id of that. Their color is the caller's.
    pub fn veil(&self, ids: &[u32], blank: u32) -> Vec<u8> {
        let mut rgba = vec![0; 4 * ids.len()];
        for (pixel, id) in rgba.chunks_exact_mut(4).zip(ids) {
            if *id != blank && !self.has(*id) {
                pixel[3] = VEIL;
            }
        }
        rgba
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_and_found_and_beyond_them_nothing_is_marked() {
        let marked = Marked::new(vec![0b1000_0001, 0b10]);
        assert_eq!(marked.n, 3);
        let found: Vec<u32> = (0..40).filter(|id| marked.has(*id)).collect();
        assert_eq!(found, [0, 7, 9]);
        assert!(!marked.has(u32::MAX));
    }

    #[test]
    fn a_veil_covers_what_is_not_marked_and_leaves_the_paper_alone() {
        let marked = Marked::new(vec![0b10]);
        let alpha: Vec<u8> =
            marked.veil(&[0, 1, u32::MAX, 9], u32::MAX).chunks(4).map(|pixel| pixel[3]).collect();
        assert_eq!(alpha, [VEIL, 0, 0, VEIL]);
    }
}
