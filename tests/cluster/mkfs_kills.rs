//! mkfs killed at its writes, one after the other: each stage finds what the one before left half-made, tells it from
//! somebody's data, and makes it anew.

use tonic::Code;

use crate::common::life::{Life, mount};
use crate::common::tools::{check, unique};
use crate::common::wrap::Wrapper;
use crate::harness::Scene;
use crate::life::request;

/// `KILLS=all`: at every write. Else at each of the first ones, which make the signatures, and then at some.
const EACH_UP_TO: u32 = 12;
const THEN_EVERY: u32 = 11;

/// Dies of SIGKILL at the write whose number `$CALLS.at` has.
const KILLED: &str = r#"
PATH=${PATH#*:} program=${0##*/} at=$(cat "$CALLS.at")
exec strace -f -qq -o /dev/null -e trace=pwrite64 -e "inject=pwrite64:signal=KILL:when=$at" "$program" "$@""#;

async fn is_killed(fs_type: &str, mib: i64) {
    let scene = Scene::new();
    let folder = scene.path("mkfs");
    let wrapper = Wrapper::new(folder.clone(), &["mkfs.ext4", "mkfs.xfs"], KILLED);
    let driver = scene.driver().wrapped(&wrapper).start().await;
    let asked = request::create(&unique("pvc"), mib, mount(fs_type));
    let life = Life::create_as(&scene, &driver, asked).await;
    let all = std::env::var("KILLS").is_ok_and(|kills| kills == "all");
    let (mut at, mut deaths) = (1, 0);
    loop {
        std::fs::write(folder.join("calls.at"), at.to_string()).expect("the number of a write");
        let Err(status) = life.stage(&driver).await else { break };
        check(Err::<(), _>(status), Code::Internal, "was killed by signal 9");
        life.assert_gone_from(&driver);
        at += if all || at < EACH_UP_TO { 1 } else { THEN_EVERY };
        deaths += 1;
    }
    assert!(deaths > EACH_UP_TO, "only {deaths} deaths: this proves little");
    life.publish(&driver).await.expect("NodePublishVolume");
    life.write(b"data").expect("a pod writes");
    life.down(&driver).await;
    life.up(&driver).await;
    assert_eq!((life.read(4), life.staged()[0].kind.as_str()), (b"data".to_vec(), fs_type));
    life.down(&driver).await;
}

#[tokio::test]
async fn a_killed_mkfs_of_ext4_is_made_good() {
    is_killed("ext4", 16).await;
}

#[tokio::test]
async fn a_killed_mkfs_of_xfs_is_made_good() {
    is_killed("xfs", 320).await;
}
