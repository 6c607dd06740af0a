//! Whatever is on an image stays on it: what others put there, what was torn, and what cannot be read.

use tonic::Code;

use crate::common::life::{Life, block, mount};
use crate::common::sight::eventually;
use crate::common::tools::{check, run, unique};
use crate::common::wrap::Wrapper;
use crate::format::{by_hand, left_alone, overwrite};
use crate::harness::{Driver, Scene};
use crate::life::request;
use crate::sources::cloned;

const BEHIND: &str = "blocks were written: there may be data; look at what is behind it";

/// What is said of something known that is no filesystem of this driver's.
macro_rules! other {
    ($what:literal) => {
        concat!("holds ", $what, ", which this driver does not mount: use it as a block volume")
    };
}

/// What is on a device, what is said of it, and how it gets there. mkfs.xfs takes no less than 300 MiB.
struct Case {
    name: &'static str,
    mib: i64,
    says: &'static str,
    made: fn(&str),
}

const fn case(name: &'static str, says: &'static str, made: fn(&str)) -> Case {
    Case { name, mib: 64, says, made }
}

const fn large(name: &'static str, says: &'static str, made: fn(&str)) -> Case {
    Case { mib: 320, ..case(name, says, made) }
}

/// Signatures as libblkid 2.38 takes them for whole.
const CASES: &[Case] = &[
    case("partition table, dos", other!("a partition table (dos)"), dos),
    case("partition table, gpt", other!("a partition table (gpt)"), gpt),
    case("LUKS1", other!("crypto_LUKS"), |device| overwrite(device, 0, b"LUKS\xba\xbe\0\x01")),
    case("LUKS2", other!("crypto_LUKS"), |device| overwrite(device, 0, b"LUKS\xba\xbe\0\x02")),
    case("LVM2", other!("LVM2_member"), lvm),
    case("ZFS", other!("zfs_member"), zfs),
    case("swap", other!("swap"), |device| drop(run("mkswap", &[device]))),
    case("mdraid 0.90, at the end", other!("linux_raid_member"), |device| {
        overwrite(device, (64 << 20) - (64 << 10), b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0");
    }),
    case("mdraid 1.2", other!("linux_raid_member"), |device| {
        overwrite(device, 4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0");
        overwrite(device, 4096 + 144, &[8]);
    }),
    case("vfat", other!("vfat"), vfat),
    case("btrfs", other!("btrfs"), |device| {
        overwrite(device, 0x10040, b"_BHRfS_M");
    }),
    case("ext2", other!("ext2"), |device| {
        drop(run("mkfs.ext2", &["-q", device]));
    }),
    large("xfs", "holds xfs, and ext4 is asked for: ask for xfs", |device| {
        drop(run("mkfs.xfs", &["-q", device]));
    }),
    large("two filesystems", other!("several signatures that contradict each other"), |device| {
        run("mkfs.xfs", &["-q", device]);
        // The superblock of an ext2: 1 KiB blocks, its magic and its revision.
        overwrite(device, 1024, b"\0\x10\0\0\0\x40\0\0");
        overwrite(device, 1024 + 0x14, &[1]);
        overwrite(device, 1024 + 0x38, b"\x53\xef\x01\0\x01\0\0\0");
        overwrite(device, 1024 + 0x4c, &[1]);
    }),
    case("ext4, its signature wiped", BEHIND, |device| {
        run("mkfs.ext4", &["-q", device]);
        run("wipefs", &["-qa", device]);
    }),
    large("xfs, its signature wiped", BEHIND, |device| {
        run("mkfs.xfs", &["-q", device]);
        run("wipefs", &["-qa", device]);
    }),
    case("one byte in the last sector", BEHIND, |device| overwrite(device, (64 << 20) - 1, &[1])),
    case("zeros that somebody wrote", BEHIND, |device| overwrite(device, 8 << 20, &[0; 512])),
    case("data of which a part was discarded", BEHIND, |device| {
        overwrite(device, 0, &vec![7; 8 << 20]);
        run("blkdiscard", &["--length", &(6 << 20).to_string(), device]);
    }),
];

/// An MBR with one Linux partition, from sector 2048 on.
fn dos(device: &str) {
    overwrite(device, 446, &[0, 0, 2, 0, 0x83, 0, 2, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
    overwrite(device, 510, &[0x55, 0xaa]);
}

/// Of 64 MiB, without a partition.
fn gpt(device: &str) {
    overwrite(device, 446, &[0, 0, 2, 0, 0xee, 0, 2, 0, 1, 0, 0, 0, 0xff, 0xff, 1, 0]);
    overwrite(device, 510, &[0x55, 0xaa]);
    overwrite(
        device,
        512,
        b"EFI PART\0\0\x01\0\x5c\0\0\0\x04\x91\xf2\xcb\0\0\0\0\x01\0\0\0\0\0\0\0\xff\xff\x01\0\0\0\0\0",
    );
    overwrite(device, 512 + 40, &[0x22]);
    overwrite(device, 512 + 48, &[0xde, 0xff, 1]);
    overwrite(device, 512 + 56, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 2]);
    overwrite(device, 512 + 80, b"\x80\0\0\0\x80\0\0\0\x86\xd2\x54\xab");
}

/// The label of a physical volume, with its checksum.
fn lvm(device: &str) {
    overwrite(device, 512, b"LABELONE\x01\0\0\0\0\0\0\0\x28\x64\x21\xfc\x20\0\0\0LVM2 001");
    overwrite(device, 512 + 32, b"0123456789abcdef0123456789abcdef");
}

/// A ring of uberblocks.
fn zfs(device: &str) {
    let uberblock = [b"\x0c\xb1\xba\0\0\0\0\0\x88\x13\0\0\0\0\0\0".as_slice(), &[0; 1008]].concat();
    overwrite(device, 128 << 10, &uberblock.repeat(128));
}

fn vfat(device: &str) {
    overwrite(device, 0, b"\xeb\x58\x90mkfs.fat\0\x02\x04\x04\0\x02\0\x02\0\0\xf8\x80\0");
    overwrite(device, 32, b"\0\0\x02\0\0\0\x29");
    overwrite(device, 54, b"FAT16   ");
    overwrite(device, 510, &[0x55, 0xaa]);
}

async fn attacked(scene: &Scene, driver: &Driver, case: &Case) -> Result<(), String> {
    let asked = request::create(&unique("pvc"), case.mib, mount("ext4"));
    let life = Life::create_as(scene, driver, asked).await;
    by_hand(scene, &life.image, case.made);
    left_alone(scene, driver, &life, case.says).await
}

#[tokio::test]
async fn what_is_there_is_never_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let mut failed = Vec::new();
    for case in CASES {
        if let Err(why) = attacked(&scene, &driver, case).await {
            failed.push(format!("{}: {why}", case.name));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a device maps goes away right before blkid looks at it.
const UNREADABLE: &str = r#"kill -9 $(cat "$RBD_STANDIN_DIR"/*/pid) 2>>"$CALLS"
exec /usr/sbin/blkid "$@""#;

/// blkid says "nothing" by an exit code that it also has for what it could not read.
#[tokio::test]
async fn a_device_that_cannot_be_read_is_not_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let lives = [
        Life::create(&scene, &driver, mount("ext4")).await,
        Life::create(&scene, &driver, mount("ext4")).await,
    ];
    let [made, fresh] = &lives;
    made.up(&driver).await;
    made.write(b"data").expect("a pod writes");
    made.down(&driver).await;
    let blind = Wrapper::new(scene.path("blind"), &["blkid"], UNREADABLE);
    let unlucky = scene.on_node("node-b", "rbd").wrapped(&blind).start().await;
    for life in &lives {
        let (there, before) = (life.on(&scene, &unlucky), scene.corner.content(&life.image));
        check(there.stage(&unlucky).await, Code::Internal, "cannot be read");
        there.assert_gone_from(&unlucky);
        assert_eq!(scene.corner.content(&life.image), before, "{} was written to", life.image);
    }
    assert!(scene.corner.is_empty(&fresh.image));
    eventually("no watch of what was killed", || scene.corner.watchers(&made.image).is_empty()).await;
    made.up(&driver).await;
    assert_eq!(made.read(4), b"data");
    made.down(&driver).await;
}

/// As much is there as on a volume that is new.
#[tokio::test]
async fn what_was_discarded_whole_is_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    by_hand(&scene, &life.image, |device| {
        overwrite(device, 0, &vec![7; 8 << 20]);
        run("blkdiscard", &[device]);
    });
    life.up(&driver).await;
    life.down(&driver).await;
}

/// The blocks are its parent's: none is its own.
#[tokio::test]
async fn a_clone_of_raw_data_is_not_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    by_hand(&scene, &source.image, |device| overwrite(device, 8 << 20, &[7; 4096]));
    let copy = cloned(&scene, &driver, &source).await;
    let copy = Life { capability: mount("ext4"), ..copy };
    left_alone(&scene, &driver, &copy, BEHIND).await.expect("it is left alone");
}
