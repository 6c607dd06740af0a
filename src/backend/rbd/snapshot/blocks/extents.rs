//! What `rbd diff --format=json` prints, read piece by piece: the list of a large image has millions of entries. Pure.

use std::io::{self, BufRead};
use std::iter::Peekable;

use serde::{Deserialize, Deserializer};

use crate::backend::Extent;
use crate::error::{Error, Result};

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Changed {
    offset: u64,
    length: u64,
    /// False: what was there is gone, and reads as zeros.
    #[serde(deserialize_with = "flag")]
    pub(crate) exists: bool,
}

/// `rbd` prints "true" and "false" as texts.
fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Flag(bool),
        Text(String),
    }
    Ok(match Either::deserialize(from)? {
        Either::Flag(flag) => flag,
        Either::Text(text) => text == "true",
    })
}

/// The entries of a list, in its order. A list without its end is an error: it was cut off.
pub(crate) struct Entries<R> {
    text: R,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Within,
    End,
}

impl<R: BufRead> Entries<R> {
    pub(crate) fn new(text: R) -> Self {
        Self { text, state: State::Start }
    }

    fn step(&mut self) -> io::Result<Option<Changed>> {
        let mark = self.mark()?;
        let first = self.state == State::Start;
        match (first, mark) {
            (true, b'[') => {
                self.state = State::Within;
                if self.peek()? == b']' {
                    return Ok(None);
                }
            }
            (false, b',') => {}
            (false, b']') => return Ok(None),
            (_, other) => {
                return Err(io::Error::other(format!(
                    "a list is expected, and there is {:?}",
                    char::from(other)
                )));
            }
        }
        let mut entry = serde_json::Deserializer::from_reader(&mut self.text);
        Ok(Some(Changed::deserialize(&mut entry)?))
    }

    /// The next byte that is no space, taken.
    fn mark(&mut self) -> io::Result<u8> {
        let mark = self.peek()?;
        self.text.consume(1);
        Ok(mark)
    }

    fn peek(&mut self) -> io::Result<u8> {
        loop {
            match self.text.fill_buf()?.first().copied() {
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the list has no end")),
                Some(space) if space.is_ascii_whitespace() => self.text.consume(1),
                Some(mark) => return Ok(mark),
            }
        }
    }
}

impl<R: BufRead> Iterator for Entries<R> {
    type Item = Result<Changed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::End {
            return None;
        }
        let step = self.step();
        if !matches!(step, Ok(Some(_))) {
            self.state = State::End;
        }
        step.map_err(|error| Error::internal("reading what rbd diff printed", error)).transpose()
    }
}

/// Entries made into extents between `from` and `size`, those that touch made into one.
pub(crate) struct Extents<I: Iterator> {
    entries: Peekable<I>,
    from: u64,
    size: u64,
    /// Where the last entry ended.
    end: u64,
}

impl<I: Iterator<Item = Result<Changed>>> Extents<I> {
    pub(crate) fn new(entries: I, from: u64, size: u64) -> Self {
        Self { entries: entries.peekable(), from, size, end: 0 }
    }

    /// The next entry, clipped; None where nothing of it is left.
    fn clipped(&mut self, entry: Changed) -> Result<Option<Extent>> {
        let whole = Extent { offset: entry.offset, length: entry.length };
        if whole.offset < self.end {
            return Err(Error::broken(format!(
                "rbd diff tells {} bytes at {} behind what ends at {}: its list is out of order",
                whole.length, whole.offset, self.end
            )));
        }
        self.end = whole.end();
        let (start, end) = (whole.offset.max(self.from), whole.end().min(self.size));
        Ok((start < end).then(|| Extent { offset: start, length: end - start }))
    }

    fn step(&mut self) -> Result<Option<Extent>> {
        let mut joined: Option<Extent> = None;
        loop {
            // What does not touch stays for the next step.
            let apart = |next: &Result<Changed>| match (next, joined) {
                (Ok(next), Some(so_far)) => next.offset > so_far.end(),
                _ => false,
            };
            if self.entries.peek().is_none_or(apart) {
                return Ok(joined);
            }
            let Some(next) = self.entries.next().transpose()? else { return Ok(joined) };
            if let Some(next) = self.clipped(next)? {
                let offset = joined.map_or(next.offset, |so_far| so_far.offset);
                joined = Some(Extent { offset, length: next.end() - offset });
            }
        }
    }
}

impl<I: Iterator<Item = Result<Changed>>> Iterator for Extents<I> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, from: u64, size: u64) -> Result<Vec<(u64, u64)>, String> {
        let extents = Extents::new(Entries::new(text.as_bytes()), from, size);
        let told = extents.map(|extent| extent.map(|extent| (extent.offset, extent.length)));
        told.collect::<Result<_>>().map_err(|error| crate::error::chain(&error))
    }

    fn print(entries: &[(u64, u64)]) -> String {
        let entry = |(offset, length): &(u64, u64)| {
            format!("{{\"offset\":{offset},\"length\":{length},\"exists\":\"true\"}}")
        };
        format!("[{}]\n", entries.iter().map(entry).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn a_list_is_read_as_rbd_prints_it() {
        let text = r#"[{"offset":0,"length":4194304,"exists":"true"},{"offset":8388608,"length":5,"exists":"false"}]"#;
        let exists: Vec<bool> =
            Entries::new(text.as_bytes()).map(|entry| entry.is_ok_and(|entry| entry.exists)).collect();
        assert_eq!(exists, [true, false]);
        assert_eq!(read(text, 0, 1 << 30), Ok(vec![(0, 4 << 20), (8 << 20, 5)]));
        assert_eq!(read("[]\n", 0, 9), Ok(vec![]));
        assert_eq!(
            read(" [ { \"offset\" : 1 , \"length\" : 2 , \"exists\" : true } ] ", 0, 9),
            Ok(vec![(1, 2)])
        );
    }

    #[test]
    fn a_list_that_was_cut_off_is_an_error_wherever_it_was_cut() {
        let text = print(&[(0, 1), (5, 1)]);
        for end in 0..text.trim_end().len() {
            assert!(read(&text[..end], 0, 9).is_err(), "cut off behind {:?}", &text[..end]);
        }
    }

    #[test]
    fn what_is_out_of_order_is_never_told() {
        assert!(read(&print(&[(4, 4), (0, 4)]), 0, 9).is_err_and(|error| error.contains("out of order")));
        assert!(read(&print(&[(0, 4), (3, 4)]), 0, 9).is_err());
    }

    proptest! {
        #[test]
        fn every_byte_that_was_listed_is_told_once(
            steps in prop::collection::vec((0u64..3, 1u64..5), 0..20), from in 0u64..80, size in 0u64..80,
        ) {
            let mut entries = Vec::new();
            let mut at = 0;
            for (gap, length) in steps {
                entries.push((at + gap, length));
                at += gap + length;
            }
            let told = read(&print(&entries), from, size).expect("extents");
            let bytes = |extents: &[(u64, u64)]| {
                extents.iter().flat_map(|(offset, length)| *offset..offset + length).collect::<Vec<_>>()
            };
            let wanted: Vec<u64> =
                bytes(&entries).into_iter().filter(|byte| (from..size).contains(byte)).collect();
            prop_assert_eq!(bytes(&told), wanted);
            prop_assert!(told.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "{:?} touch", told);
        }

        #[test]
        fn any_text_is_read_without_panic(text in "\\PC*") {
            let _ = read(&text, 0, 9);
            let _ = read(&format!("[{text}"), 0, 9);
        }
    }
}
