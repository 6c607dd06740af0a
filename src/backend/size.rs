//! How large a volume may be.

use std::fmt;

use crate::error::{Error, Result};

/// Sizes in bytes; `limit` is the most that the caller allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeRange {
    pub(crate) required: u64,
    pub(crate) limit: Option<u64>,
}

impl SizeRange {
    const DEFAULT: u64 = 1 << 30;

    /// The size to make: what is required (1 GiB where nothing is), rounded up to `granule`, never past the limit.
    pub(crate) fn choose(&self, granule: u64) -> Result<u64> {
        let limit = self.limit.unwrap_or(i64::MAX.unsigned_abs());
        let wanted =
            if self.required == 0 { Self::DEFAULT.min(limit / granule * granule) } else { self.required };
        let size = wanted.max(1).checked_next_multiple_of(granule).filter(|size| *size <= limit);
        size.ok_or_else(|| {
            Error::OutOfRange(format!(
                "no size fits: required_bytes {}, rounded up to {granule} bytes, is more than the limit of {limit}",
                self.required
            ))
        })
    }

    /// A volume that is large enough already keeps its size, unless that is too large.
    pub(crate) fn keep(&self, size: u64) -> Result<u64> {
        match self.limit {
            Some(limit) if size > limit => Err(Error::OutOfRange(format!(
                "the volume has {size} bytes, more than the limit of {limit}: a volume is never made smaller"
            ))),
            _ => Ok(size),
        }
    }

    pub(crate) fn admits(&self, size: u64) -> bool {
        size >= self.required && self.limit.is_none_or(|limit| size <= limit)
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Some(limit) => write!(f, "{} to {limit} bytes", self.required),
            None => write!(f, "{} bytes or more", self.required),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn check(required: u64, limit: Option<u64>) -> Option<u64> {
        SizeRange { required, limit }.choose(MIB).ok()
    }

    #[test]
    fn a_size_is_rounded_up_but_never_past_the_limit() {
        assert_eq!(check(0, None), Some(1 << 30));
        assert_eq!(check(0, Some(10 * MIB + 5)), Some(10 * MIB));
        assert_eq!(check(1, None), Some(MIB));
        assert_eq!(check(MIB + 1, Some(2 * MIB)), Some(2 * MIB));
        assert_eq!(check(MIB + 1, Some(2 * MIB - 1)), None);
        assert_eq!(check(0, Some(5)), None);
        assert_eq!(check(u64::MAX, None), None);
    }

    proptest! {
        #[test]
        fn a_chosen_size_is_always_admitted(required in 0..1_u64 << 50, limit in proptest::option::of(0..1_u64 << 50)) {
            let range = SizeRange { required, limit };
            if let Ok(size) = range.choose(MIB) {
                prop_assert!(range.admits(size) && size % MIB == 0 && size > 0);
            }
        }
    }
}
