//! Stores the matches between an old and a new file: which ranges of the new one are similar to which ranges of the old one.

/// A range of the new bytes that is similar to a range of the old bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) old: u64,
    pub(super) new: u64,
    pub(super) length: u64,
}

/// Matches in the order of the new bytes, without overlaps. A large file has a million; one takes about six bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MatchList {
    encoded: Vec<u8>,
    last: End,
}

/// The ends of a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End {
    old: u64,
    new: u64,
}

impl Match {
    fn end(self) -> End {
        End {
            old: self.old + self.length,
            new: self.new + self.length,
        }
    }
}

impl MatchList {
    /// Adds a match after the last one; one without length is ignored.
    pub(super) fn push(&mut self, found: Match) {
        if found.length == 0 {
            return;
        }
        let jump = found.old.wrapping_sub(self.last.old).cast_signed();
        for number in [found.new - self.last.new, zigzag(jump), found.length] {
            self.push_number(number);
        }
        self.last = found.end();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.encoded.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Match> {
        let mut bytes = self.encoded.iter();
        let mut last = End::default();
        let mut number = move || {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let byte = *bytes.next()?;
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            Some(value)
        };
        std::iter::from_fn(move || {
            let (gap, jump, length) = (number()?, number()?, number()?);
            let found = Match {
                old: last.old.wrapping_add_signed(unzigzag(jump)),
                new: last.new + gap,
                length,
            };
            last = found.end();
            Some(found)
        })
    }

    fn push_number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.encoded.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.encoded.push(number as u8);
    }
}

/// Small numbers of either sign become small ones without sign.
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_come_back_as_they_were_added() {
        let matches = [
            (5, 0, 3),
            (0, 3, 1 << 40),
            (1 << 50, (1 << 40) + 200, 1),
            (0, (1 << 41), 300),
        ]
        .map(|(old, new, length)| Match { old, new, length });
        let mut list = MatchList::default();
        for found in matches {
            list.push(found);
            list.push(Match { length: 0, ..found });
        }
        assert_eq!(list.iter().collect::<Vec<_>>(), matches);
        assert_eq!(MatchList::default().iter().count(), 0);
    }
}
