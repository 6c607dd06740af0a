//! TCP for clients that send an `:authority` which is none. grpc-go takes an endpoint `tcp://127.0.0.1:10000` (csc's
//! spelling) for a name and sends `tcp:%2F%2F127.0.0.1:10000`; h2 refuses the call with PROTOCOL_ERROR before anybody
//! is asked. Nobody here reads the value, so each becomes `localhost`, as over a Unix socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::Connected;

const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
/// The frame size that h2 allows where nothing else is agreed upon (RFC 9113, 6.5.2).
const LARGEST: usize = 16 << 10;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in HPACK's static table (RFC 7541, appendix A).
const AUTHORITY: usize = 1;
const VALUE: &[u8] = b"\x09localhost";

/// A connection whose incoming `:authority` values are rewritten.
pub(crate) struct Tcp {
    stream: TcpStream,
    rewriter: Rewriter,
    ready: Vec<u8>,
}

impl Tcp {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, rewriter: Rewriter::default(), ready: Vec::new() }
    }
}

impl AsyncRead for Tcp {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            let mut chunk = [0; 4 << 10];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(())); // the end; half a frame is of no use to anybody
            }
            this.rewriter.feed(chunk.filled(), &mut this.ready);
        }
        let count = this.ready.len().min(out.remaining());
        out.put_slice(&this.ready[..count]);
        this.ready.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl Connected for Tcp {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Frames (RFC 9113, section 4): HEADERS are looked into, all else passes as it comes.
struct Rewriter {
    held: Vec<u8>,
    /// Bytes that pass before the next frame begins.
    pass: usize,
}

impl Default for Rewriter {
    fn default() -> Self {
        Self { held: Vec::new(), pass: PREFACE }
    }
}

impl Rewriter {
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.held.extend_from_slice(bytes);
        loop {
            let passing = self.pass.min(self.held.len());
            out.extend(self.held.drain(..passing));
            self.pass -= passing;
            let Some(head) = self.held.first_chunk::<FRAME_HEAD>() else { return };
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            if head[3] != HEADERS {
                self.pass = FRAME_HEAD + length;
            } else if length > LARGEST {
                self.pass = FRAME_HEAD + length; // h2 will refuse it
            } else if self.held.len() < FRAME_HEAD + length {
                return;
            } else {
                let frame: Vec<u8> = self.held.drain(..FRAME_HEAD + length).collect();
                out.extend(rewritten(&frame).unwrap_or(frame));
            }
        }
    }
}

/// The frame with another `:authority`; None where it has none, or is not what this reads (h2 will say so).
fn rewritten(frame: &[u8]) -> Option<Vec<u8>> {
    let flags = frame[4];
    let skipped = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let value = authority_value(frame, FRAME_HEAD + skipped)?;
    let mut new = [&frame[..value.start], VALUE, &frame[value.end..]].concat();
    let length = u32::try_from(new.len() - FRAME_HEAD).ok()?.to_be_bytes();
    new[..3].copy_from_slice(&length[1..]);
    Some(new)
}

/// Where the value of `:authority` stands in a header block (RFC 7541, section 6), its length included.
fn authority_value(frame: &[u8], mut at: usize) -> Option<std::ops::Range<usize>> {
    while let Some(first) = frame.get(at) {
        let (prefix, has_value) = match first {
            0x80.. => (7, false),
            0x40..0x80 => (6, true),
            0x20..0x40 => (5, false),
            0x00..0x20 => (4, true),
        };
        let (name, next) = integer(frame, at, prefix)?;
        at = next;
        if has_value {
            if name == 0 {
                at = string_end(frame, at)?;
            }
            let end = string_end(frame, at)?;
            if name == AUTHORITY {
                return Some(at..end);
            }
            at = end;
        }
    }
    None
}

/// A number whose first `prefix` bits stand in the byte at `at`, and where it ends (RFC 7541, section 5.1).
fn integer(bytes: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let most = (1 << prefix) - 1;
    let mut value = usize::from(*bytes.get(at)?) & most;
    let mut at = at + 1;
    let mut shift = 0;
    if value == most {
        loop {
            let byte = *bytes.get(at)?;
            at += 1;
            value = value.checked_add(usize::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 28)?)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    Some((value, at))
}

fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let (length, start) = integer(bytes, at, 7)?;
    start.checked_add(length).filter(|end| *end <= bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What csc 1.14 sent for a Probe: preface, SETTINGS ack, HEADERS, DATA.
    const CSC: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x04\x01\x00\x00\x00\x00\x00\x00]\x01\x04\x00\x00\x00\x01\x83\x86E\x90`\x882\xfd\xc2\xbeI\x0bRL\x9fLk\xb0\xf1\x97A\x92I+\xb8\xa8\xb0\xaa,!\x13\xab\x81p.\x1b\x81\x00\x1bo_\x8b\x1du\xd0b\r&=LMedz\x8a\x9a\xca\xc8\xb4\xc7`+\xbc\xca\xe1@\x02te\x86M\x835\x05\xb1\x1f@\x89\x9a\xca\xc8\xb2MIOj\x7f\x85}\xf7\xc2\x10[\x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00";

    fn check(sizes: usize) -> Vec<u8> {
        let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
        CSC.chunks(sizes).for_each(|chunk| rewriter.feed(chunk, &mut out));
        out
    }

    #[test]
    fn an_authority_becomes_localhost_and_nothing_else_changes() {
        let out = check(CSC.len());
        let old = CSC.windows(19).position(|part| part[0] == b'A' && part[1] == 0x92).expect("its authority");
        let new = out.windows(11).position(|part| part == b"A\x09localhost").expect("ours");
        assert_eq!((old, &out[new + 11..]), (new, &CSC[old + 20..]));
        assert_eq!(usize::from(out[44]) + 9, 0x5d, "{out:?}");
    }

    #[test]
    fn it_does_not_matter_how_the_bytes_come() {
        for size in [1, 2, 7, 24, 33, 50] {
            assert_eq!(check(size), check(CSC.len()));
        }
    }

    #[test]
    fn what_is_no_header_block_passes_as_it_is() {
        assert_eq!(rewritten(b"\x00\x00\x02\x01\x04\x00\x00\x00\x01\x41\x7f"), None);
        assert_eq!(rewritten(b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x82"), None);
    }
}
