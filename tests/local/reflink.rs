//! A root on xfs: copies share their blocks, and a volume in use is copied without being stopped.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::asks;
use crate::common::growth::pattern;
use crate::common::life::{Life, block, mount};
use crate::common::sight::loops_below;
use crate::common::tools::{run, unique};
use crate::harness::Scene;

/// KiB that the root's filesystem has given away.
fn used(scene: &Scene) -> u64 {
    run("sync", &["--file-system", &scene.root.to_string_lossy()]);
    let told = run("df", &["--output=used", "--block-size=1K", &scene.root.to_string_lossy()]);
    told.lines().nth(1).and_then(|line| line.trim().parse().ok()).expect("a number from df")
}

#[tokio::test]
async fn a_snapshot_of_64_mib_full_of_data_takes_next_to_nothing() {
    let scene = Scene::on("xfs", 512);
    assert!(scene.reflinks(), "this xfs shares no blocks");
    let driver = scene.start().await;
    let data = pattern(64, 1);
    let source = Life::create(&scene, &driver, block()).await.filled(&driver, &data).await;
    let before = used(&scene);
    assert!(before > 64 << 10);
    let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
    let clone = asks::any(64, block()).of_volume(&source.id);
    let clone = Life::create_as(&scene, &driver, clone).await;
    let restore = asks::any(64, block()).of_snapshot(&snapshot.snapshot_id);
    let restore = Life::create_as(&scene, &driver, restore).await;
    let after = used(&scene);
    assert!(after < before + 4096, "three copies of 64 MiB took {} KiB", after - before);
    for life in [&source, &clone, &restore] {
        assert!(std::fs::metadata(&life.image).expect("its image").blocks() * 512 >= 64 << 20);
        assert!(life.content(&driver, data.len()).await == data);
    }
}

#[tokio::test]
async fn a_staged_block_volume_is_copied_as_it_is() {
    let scene = Scene::on("xfs", 512);
    let driver = scene.start().await;
    let (before, after) = (pattern(4, 2), pattern(4, 3));
    let source = Life::create(&scene, &driver, block()).await;
    source.up(&driver).await;
    source.write(&before).expect("a pod writes");
    let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
    let clone = Life::create_as(&scene, &driver, asks::any(64, block()).of_volume(&source.id)).await;
    source.write(&after).expect("it goes on writing");
    let restore = asks::any(64, block()).of_snapshot(&snapshot.snapshot_id);
    let restore = Life::create_as(&scene, &driver, restore).await;
    for life in [&clone, &restore] {
        assert!(life.content(&driver, before.len()).await == before, "not the data of its moment");
    }
    assert!(source.read(after.len()) == after);
    source.down(&driver).await;
}

#[tokio::test]
async fn a_mounted_filesystem_is_whole_in_its_copy() {
    let scene = Scene::on("xfs", 1024);
    let driver = scene.start().await;
    for fs_type in ["ext4", "xfs"] {
        let data = pattern(8, 4);
        let source = Life::create(&scene, &driver, mount(fs_type)).await;
        source.up(&driver).await;
        // Not synced.
        std::fs::write(source.place(), &data).expect("a pod writes");
        let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
        std::fs::write(source.place(), b"more").expect("it goes on writing");
        let request = asks::any(source.capability.usual_mib(), mount(fs_type));
        let restore = Life::create_as(&scene, &driver, request.of_snapshot(&snapshot.snapshot_id)).await;
        assert!(restore.content(&driver, data.len()).await == data, "{fs_type}");
        source.down(&driver).await;
    }
}

/// Through the cache of the root's filesystem or past it: the same data, and the volume says which.
#[tokio::test]
async fn direct_io_is_a_matter_of_the_class() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for direct in ["true", "false"] {
        let request = asks::any(64, block()).with_parameters(&[("directIO", direct)]);
        let life = Life::create_as(&scene, &driver, request).await;
        life.up(&driver).await;
        let found = loops_below(&scene.root).remove(0).device;
        let name = found.file_name().expect("a name").to_string_lossy().into_owned();
        let dio = std::fs::read_to_string(Path::new("/sys/block").join(name).join("loop/dio"));
        assert_eq!(dio.expect("loop/dio").trim() == "1", direct == "true");
        life.write(&pattern(1, 5)).expect("a pod writes");
        life.down(&driver).await;
        assert!(life.content(&driver, 1 << 20).await == pattern(1, 5));
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
}
