//! Values of requests: good ones, half-good ones, and those that somebody means harm with.

use crate::common::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::common::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use crate::common::csi::{
    CapacityRange, Topology, TopologyRequirement, VolumeCapability, VolumeContentSource,
};
use crate::common::life::Map;

use super::World;

/// Those that begin with a dash tell by "fuzzed", before any '=', that they came in a request: see `OPTIONS`.
const TEXTS: &[&str] = &[
    "",
    "-",
    "--",
    "-fuzzed",
    "--fuzzed",
    "--fuzzed=1",
    "-o-fuzzed",
    "a@b",
    "pool/image@snap",
    "@",
    "../../../etc/passwd",
    "..",
    ".",
    "/",
    "//",
    "a/b",
    "/etc/passwd",
    " ",
    "a b",
    "\t",
    "a\nb",
    "\n--fuzzed",
    "a\0b",
    "\0",
    "é漢字🦀",
    "\u{202e}x",
    "\u{feff}",
    "%s%n%d",
    "$(touch fuzzed)",
    "`id`",
    "'; exit 1; '",
    "\"",
    "\\",
    "a\\b",
    "*",
    "{",
    "{}",
    "[]",
    "null",
    "true",
    "0",
    "-1",
    "18446744073709551616",
    "1e309",
    "NaN",
    "image-meta.json",
    "replay",
    ",",
    "a,b",
    "a=b",
    "=",
    ":",
    "krbd:a;nbd:b",
    "0001-0000-",
    "0001-0003-lab-0000000000000001-",
    "csi-vol-",
    "[[[[[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
];
const ASCII: &[char] =
    &['\0', '\u{1}', '\u{7}', '\u{1b}', '\u{7f}', ' ', 'a', 'Z', '0', '-', '/', '.', '@', ',', '=', '"'];
const FLAGS: &[&str] = &["noatime", "nodev,nosuid", "ro", "rw", "discard", "data=ordered", "sync", "_netdev"];
const FILESYSTEMS: &[&str] = &["", "ext4", "ext4", "ext4", "xfs", "ext3", "btrfs", "directory"];
const SIZES: &[i64] = &[
    i64::MIN,
    -1,
    0,
    1,
    511,
    4096,
    1 << 20,
    (1 << 20) + 1,
    16 << 20,
    32 << 20,
    32 << 20,
    48 << 20,
    64 << 20,
    1 << 50,
    i64::MAX,
];
/// A request is made of this many good parts in a hundred.
const GOOD: u64 = 93;

impl World {
    pub(super) fn good(&mut self) -> bool {
        self.dice.chance(GOOD)
    }

    pub(super) fn text(&mut self) -> String {
        match self.dice.below(12) {
            0 => "x".repeat(10_000),
            1 => "é".repeat(self.dice.index(200)),
            2 => (0..self.dice.below(40)).map(|_| self.dice.pick(ASCII)).collect(),
            3 => self.dice.pick(
                &[self.volumes.clone(), self.snapshots.clone()]
                    .concat()
                    .into_iter()
                    .chain([String::new()])
                    .collect::<Vec<_>>(),
            ),
            _ => self.dice.pick(TEXTS).to_owned(),
        }
    }

    pub(super) fn name(&mut self, what: &str) -> String {
        if self.good() { format!("{what}-{:x}-{}", self.seed, self.dice.below(5)) } else { self.text() }
    }

    pub(super) fn volume_id(&mut self) -> String {
        let known = self.volumes.clone();
        self.id(&known)
    }

    pub(super) fn snapshot_id(&mut self) -> String {
        let known = self.snapshots.clone();
        self.id(&known)
    }

    fn id(&mut self, known: &[String]) -> String {
        if known.is_empty() {
            return self.text();
        }
        // The last ones are those that live.
        let recent = &known[known.len().saturating_sub(5)..];
        let id = self.dice.pick(recent);
        match self.dice.below(100) {
            0..GOOD => id,
            93..96 => self.spoilt(&id),
            96 => self.dice.pick(known),
            _ => self.text(),
        }
    }

    /// An id that is nearly one.
    fn spoilt(&mut self, id: &str) -> String {
        let at = self.dice.index(id.len());
        // Ids of tests are ASCII, but what was learned may be anything.
        let at = (0..=at).rev().find(|at| id.is_char_boundary(*at)).unwrap_or(0);
        let (head, tail) = id.split_at(at);
        match self.dice.below(6) {
            0 => head.to_owned(),
            1 => format!("{id}{}", self.text()),
            2 => format!("{head}{}{tail}", self.text()),
            3 => id.to_uppercase(),
            4 => format!("{head}{}", tail.chars().skip(1).collect::<String>()),
            _ => format!("{head}f{}", tail.chars().skip(1).collect::<String>()),
        }
    }

    /// Where a volume is staged: each has two places.
    pub(super) fn staging(&mut self, volume: &str) -> String {
        let place = staging(volume, self.dice.below(8) / 7);
        self.path(&place)
    }

    /// Each volume, and where it may be staged.
    pub(super) fn stagings(&self) -> Vec<(String, String)> {
        let folder = self.folder.display();
        let places =
            |id: &String| [0, 1].map(|which| (id.clone(), format!("{folder}/{}", staging(id, which))));
        self.volumes.iter().flat_map(places).collect()
    }

    pub(super) fn target(&mut self, volume: &str) -> String {
        let place = format!("pods/{}-{}/mount", number(volume), self.dice.below(3));
        self.path(&place)
    }

    fn path(&mut self, good: &str) -> String {
        let folder = self.folder.display().to_string();
        if self.good() {
            return format!("{folder}/{good}");
        }
        let below = [
            "link",
            "link/below",
            "pods/link",
            "pods/link/below",
            "pods/file-link",
            "staging/link",
            "staging/link/link",
            "canary/file",
            "canary/file/below",
            "canary/folder",
            "pods/../canary",
            "pods/a b",
            "pods/a\nb",
            "pods/-fuzzed",
            "pods/\u{202e}漢",
            "pods/a\0b",
            "..",
            "../..",
            "./pods/y",
            "pods//x/",
        ];
        match self.dice.below(8) {
            0 => self.text(),
            1 => format!("{folder}/pods/{}", "x".repeat(300)),
            2 => format!("{folder}{}", "/x".repeat(5_000)),
            _ => format!("{folder}/{}", self.dice.pick(&below)),
        }
    }

    pub(super) fn node(&mut self) -> String {
        if self.good() { self.node.clone() } else { self.text() }
    }

    pub(super) fn size(&mut self) -> i64 {
        if self.good() { self.dice.pick(&[32 << 20, 48 << 20, 64 << 20]) } else { self.dice.pick(SIZES) }
    }

    pub(super) fn range(&mut self) -> Option<CapacityRange> {
        let limit_bytes = if self.good() { 0 } else { self.size() };
        Some(CapacityRange { required_bytes: self.size(), limit_bytes }).filter(|_| self.dice.chance(97))
    }

    /// A volume keeps how it is used, mostly, so that its life goes on.
    pub(super) fn capability(&mut self, of: &str) -> Option<VolumeCapability> {
        if self.dice.chance(90) {
            let access = if number(of).is_multiple_of(3) {
                AccessType::Block(BlockVolume {})
            } else {
                AccessType::Mount(MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() })
            };
            return Some(VolumeCapability {
                access_type: Some(access),
                access_mode: Some(AccessMode { mode: 1 }),
            });
        }
        let access_type = match self.dice.below(20) {
            0 => None,
            1..6 => Some(AccessType::Block(BlockVolume {})),
            _ => Some(AccessType::Mount(self.mount())),
        };
        let mode = self.dice.pick(&[-1, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let access_mode = Some(AccessMode { mode }).filter(|_| self.dice.chance(95));
        Some(VolumeCapability { access_type, access_mode }).filter(|_| self.dice.chance(95))
    }

    fn mount(&mut self) -> MountVolume {
        let fs_type = if self.good() { self.dice.pick(FILESYSTEMS).to_owned() } else { self.text() };
        let flag = |world: &mut Self| match world.dice.below(4) {
            0 => world.text(),
            _ => world.dice.pick(FLAGS).to_owned(),
        };
        let mount_flags = (0..self.dice.below(4)).map(|_| flag(self)).collect();
        let volume_mount_group = if self.good() { String::new() } else { self.text() };
        MountVolume { fs_type, mount_flags, volume_mount_group }
    }

    /// Of a class, or of what CreateVolume answered.
    pub(super) fn parameters(&mut self) -> Map {
        let mut map = self.needed.clone();
        for (name, values) in self.parameters.clone() {
            if self.dice.chance(4) && !values.is_empty() {
                map.insert(name.to_owned(), self.dice.pick(&values));
            } else if self.dice.chance(2) {
                map.insert(name.to_owned(), self.text());
            }
        }
        self.spoil(map)
    }

    pub(super) fn secrets(&mut self) -> Map {
        let map = self.secrets.clone();
        self.spoil(map)
    }

    fn spoil(&mut self, mut map: Map) -> Map {
        if self.good() {
            return map;
        }
        match self.dice.below(4) {
            0 => drop(map.pop_first()),
            1 => drop(map.pop_last()),
            2 => drop(map.insert(self.text(), self.text())),
            _ => {
                let text = self.text();
                if let Some(mut entry) = map.last_entry() {
                    entry.insert(text);
                }
            }
        }
        map
    }

    pub(super) fn source(&mut self) -> Option<VolumeContentSource> {
        let r#type = match self.dice.below(8) {
            0 => Some(Type::Snapshot(SnapshotSource { snapshot_id: self.snapshot_id() })),
            1 => Some(Type::Volume(VolumeSource { volume_id: self.volume_id() })),
            2 if !self.good() => None,
            _ => return None,
        };
        Some(VolumeContentSource { r#type })
    }

    pub(super) fn places(&mut self) -> Option<TopologyRequirement> {
        if self.good() {
            return None;
        }
        let segments = Map::from([(self.text(), self.text())]);
        let list = vec![Topology { segments }];
        Some(TopologyRequirement { requisite: list.clone(), preferred: list })
    }

    pub(super) fn page(&mut self) -> (i32, String) {
        let most = if self.good() { 0 } else { self.dice.pick(&[i32::MIN, -1, 1, 2, i32::MAX]) };
        (most, if self.good() { String::new() } else { self.text() })
    }
}

fn staging(volume: &str, which: u64) -> String {
    format!("staging/{}-{which}", number(volume))
}

/// One number for each text.
fn number(text: &str) -> u64 {
    text.bytes().fold(7_u64, |number, byte| number.wrapping_mul(31).wrapping_add(u64::from(byte))) % 100_000
}
