//! A small seeded generator, so that a demo can be run again with the same faults.
//!
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Integers only: logarithms and
//! powers differ in their last digit between platforms, and the same seed must give the same totals everywhere.

/// The generator's state.
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

/// Ten thousand ten-thousandths: the whole of a share.
pub(super) const WHOLE: u32 = 10_000;

impl SplitMix64 {
    #[cfg(test)]
    const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of one thing among many: `parts` name it. Its numbers do not depend on how many were drawn for others.
    pub(super) fn of(seed: u64, parts: &[u64]) -> Self {
        let mut state = Self(seed);
        for part in parts {
            state.0 = state.next() ^ *part;
        }
        Self(state.next())
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `[0, bound)`; 0 for a bound of 0. The bias is below `bound` ÷ 2^64.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let scaled = (u128::from(self.next()) * u128::from(bound)) >> 64;
        u64::try_from(scaled).expect("a product shifted down is below its bound")
    }

    /// A number in `[low, high]`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True for `share` ten-thousandths of all draws.
    pub(super) fn chance(&mut self, share: u32) -> bool {
        self.below(u64::from(WHOLE)) < u64::from(share)
    }

    /// Puts `items` in a random order (Fisher–Yates).
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1);
            items.swap(
                last,
                usize::try_from(other).expect("an index below a length is one"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_the_reference() {
        // Printed by the reference implementation for the seed 1234567.
        let mut random = SplitMix64::seeded(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn draws_stay_inside_their_bounds() {
        let mut random = SplitMix64::seeded(1);
        assert!((0..1_000).all(|_| random.below(7) < 7));
        assert!((0..1_000).all(|_| (3..=5).contains(&random.between(3, 5))));
        assert_eq!(random.below(0), 0);
        assert!((0..100).all(|_| !random.chance(0) && random.chance(WHOLE)));
    }
}
