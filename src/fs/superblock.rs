//! How much of its device a filesystem fills, read from the first bytes of the device: ext4 and xfs. Pure.

/// Enough of a device for `read`.
pub(crate) const LENGTH: usize = 4096;
/// Where ext4 keeps its superblock.
const EXT4: usize = 1024;
const EXT4_MAGIC: u16 = 0xEF53;
const EXT4_64BIT: u32 = 0x80;
/// resize2fs and mke2fs leave off a last group with less room than this beside its own administration.
const EXT4_LEAST_ROOM: u64 = 50;
/// The kernel leaves off a last allocation group that is shorter (XFS_MIN_AG_BLOCKS).
const XFS_LEAST_GROUP: u64 = 64;
/// Sizes are rounded down to whole pages, of 64 KiB on some machines.
const ROUNDING: u64 = 64 << 10;

/// The size of a filesystem, and how it grows. In blocks of `block` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    block: u64,
    blocks: u64,
    /// Blocks before the first group.
    first: u64,
    /// Blocks of a (block or allocation) group.
    group: u64,
    /// A last group of fewer blocks may not be worth it, and is then left off.
    runt: u64,
}

impl Extent {
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block)
    }

    /// Whether it is as large as it gets on a device of so many bytes. What is missing may be a rest of a page, or,
    /// where the filesystem ends with a whole group, a next group that is too small: seen on ext4 up to 2.2 MiB with
    /// usual options (8.2 MiB with many inodes), on xfs 255 KiB. Both are there for ever, so no constant would do: one
    /// that is large enough would hide true growth.
    pub(crate) fn fills(&self, device: u64) -> bool {
        let left = (device / self.block).saturating_sub(self.blocks);
        let rounding = ROUNDING / self.block;
        let whole_groups = self.blocks.saturating_sub(self.first).is_multiple_of(self.group);
        left <= rounding || (whole_groups && left < self.runt.saturating_add(rounding))
    }
}

/// None where there is neither, or one that makes no sense.
pub(crate) fn read(head: &[u8]) -> Option<Extent> {
    ext4(head).or_else(|| xfs(head))
}

fn ext4(head: &[u8]) -> Option<Extent> {
    let head = head.get(EXT4..)?;
    let half = |at| bytes(head, at).map(u16::from_le_bytes);
    let word = |at| bytes(head, at).map(u32::from_le_bytes);
    (half(0x38)? == EXT4_MAGIC).then_some(())?;
    let block = 1024_u64.checked_shl(word(0x18)?).filter(|block| (1024..=1 << 16).contains(block))?;
    let wide = word(0x60)? & EXT4_64BIT != 0;
    let high = if wide { u64::from(word(0x150)?) } else { 0 };
    let blocks = u64::from(word(0x4)?) | high << 32;
    let (first, group) = (u64::from(word(0x14)?), u64::from(word(0x20)?));
    (blocks > first && group > 0).then_some(())?;
    // What a group holds of its own, as resize2fs counts it (adjust_fs_info): inode table, two bitmaps, and a copy of
    // the superblock with all descriptors, those to come too.
    let inodes = (u64::from(word(0x28)?) * u64::from(half(0x58)?)).div_ceil(block);
    let descriptors = ((blocks - first).div_ceil(group).saturating_mul(64)).div_ceil(block);
    let runt = inodes + 2 + 1 + descriptors + u64::from(half(0xCE)?) + EXT4_LEAST_ROOM;
    Some(Extent { block, blocks, first, group, runt })
}

fn xfs(head: &[u8]) -> Option<Extent> {
    (head.get(..4)? == b"XFSB").then_some(())?;
    let block = u64::from(u32::from_be_bytes(bytes(head, 4)?));
    let blocks = u64::from_be_bytes(bytes(head, 8)?);
    let group = u64::from(u32::from_be_bytes(bytes(head, 84)?));
    let sound = block.is_power_of_two() && (512..=1 << 16).contains(&block) && group > 0;
    sound.then_some(Extent { block, blocks, first: 0, group, runt: XFS_LEAST_GROUP })
}

fn bytes<const N: usize>(head: &[u8], at: usize) -> Option<[u8; N]> {
    head.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::path::PathBuf;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::host::linux::Linux;
    use crate::host::{Cmd, Host as _};

    const MIB: u64 = 1 << 20;

    /// A sparse file, and the programs that work on it.
    struct Disk {
        folder: tempfile::TempDir,
    }

    impl Disk {
        fn new(size: u64) -> Self {
            let disk = Self { folder: tempfile::tempdir().expect("a folder") };
            File::create(disk.path()).expect("a file");
            disk.set(size);
            disk
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("disk")
        }

        fn set(&self, size: u64) {
            File::options()
                .write(true)
                .open(self.path())
                .and_then(|file| file.set_len(size))
                .expect("a size");
        }

        async fn run(&self, program: &'static str, args: &[&str]) {
            let path = self.path().to_string_lossy().into_owned();
            let args = args.iter().map(|arg| (*arg).to_owned()).chain([path]);
            Linux::new(1, Duration::from_secs(60)).run(Cmd::new(program, args)).await.expect(program);
        }

        fn extent(&self) -> Extent {
            let mut head = vec![0; LENGTH];
            File::open(self.path()).and_then(|mut file| file.read_exact(&mut head)).expect("a head");
            read(&head).expect("a filesystem")
        }
    }

    #[tokio::test]
    async fn an_ext4_as_made_and_as_grown_fills_odd_sizes() {
        let sizes = [64 * MIB + 3 * 4096, 129 * MIB + 512, 1024 * MIB, 1024 * MIB + 12345];
        for from in sizes {
            // Behind 1 GiB: a rest that is too small for a group; one that just is; some of a group.
            for by in [0, 2 * MIB + 512, 5 * MIB, 77 * MIB + 7, 128 * MIB, 130 * MIB] {
                let disk = Disk::new(from);
                disk.run("mkfs.ext4", &["-q", "-F", "-m0", "-E", "nodiscard,lazy_itable_init=1"]).await;
                assert!(disk.extent().fills(from), "{from} {:?}", disk.extent());
                disk.set(from + by);
                disk.run("e2fsck", &["-f", "-p"]).await;
                disk.run("resize2fs", &[]).await;
                assert!(disk.extent().fills(from + by), "{from} + {by}: {:?}", disk.extent());
            }
        }
    }

    #[tokio::test]
    async fn what_is_to_be_grown_is_seen() {
        for options in [&["-b", "1024"][..], &["-b", "4096"], &["-b", "4096", "-O", "^64bit"]] {
            let disk = Disk::new(100 * MIB);
            disk.run("mkfs.ext4", &[&["-q", "-F"], options].concat()).await;
            let extent = disk.extent();
            assert_eq!(extent.bytes(), 100 * MIB, "{options:?}");
            // The last group is not whole: every MiB counts.
            assert!(!extent.fills(101 * MIB) && !extent.fills(u64::MAX), "{extent:?}");
            assert!(extent.fills(100 * MIB + 4095) && extent.fills(0), "{extent:?}");
        }
    }

    #[tokio::test]
    async fn an_xfs_is_read_too() {
        let disk = Disk::new(300 * MIB + 8192);
        disk.run("mkfs.xfs", &["-q", "-f", "-K"]).await;
        let extent = disk.extent();
        assert!(extent.fills(300 * MIB + 8192) && extent.bytes() > 299 * MIB, "{extent:?}");
        assert!(!extent.fills(302 * MIB), "{extent:?}");
        assert_eq!(extent.runt, 64);
    }

    #[test]
    fn what_is_no_filesystem_has_no_extent() {
        assert_eq!(read(&[0; LENGTH]), None);
        assert_eq!(read(b"XFSB"), None);
        let mut head = [0; LENGTH];
        head[..4].copy_from_slice(b"XFSB");
        assert_eq!(read(&head), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes: Vec<u8>, xfs: bool, size: u64) {
            let magic: &[u8] = if xfs { b"XFSB" } else { &[0x53, 0xEF] };
            bytes.resize(bytes.len().max(LENGTH), 0xFF);
            let at = if xfs { 0 } else { EXT4 + 0x38 };
            bytes[at..at + magic.len()].copy_from_slice(magic);
            let _ = read(&bytes).map(|extent| (extent.fills(size), extent.bytes()));
        }

        #[test]
        fn any_numbers_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), LENGTH), log in 0..7_u8) {
            let mut bytes = bytes;
            bytes[EXT4 + 0x38..EXT4 + 0x3A].copy_from_slice(&[0x53, 0xEF]);
            bytes[EXT4 + 0x18..EXT4 + 0x1C].copy_from_slice(&[log, 0, 0, 0]);
            let _ = read(&bytes).map(|extent| (extent.fills(u64::MAX), extent.bytes()));
        }
    }
}
