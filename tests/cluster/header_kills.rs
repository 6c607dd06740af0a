//! luksFormat killed at each of its writes, one after the other: each stage finds what the one before left half-made, tells
//! it from somebody's data, and makes it anew. (It needs no dm-crypt; what opens the header is in `guest`.)

use tonic::Code;

use crate::common::life::mount;
use crate::common::tools::check;
use crate::common::wrap::Wrapper;
use crate::harness::Scene;
use crate::keys::{ENCRYPTED, encrypted_life};

/// Dies of SIGKILL at the write whose number `$CALLS.at` has. A header that its passphrase opens is written down, and
/// stays closed, whatever the kernel has.
const KILLED: &str = r#"
PATH=${PATH#*:} at=$(cat "$CALLS.at")
case $* in
*luksFormat*)
    exec strace -f -qq -o /dev/null -e trace=write -e "inject=write:signal=KILL:when=$at" \
        cryptsetup --pbkdf-force-iterations 4 "$@"
    ;;
*luksOpen*)
    cryptsetup open --test-passphrase "$2" -d - && echo "opens" >>"$CALLS"
    exit 1
    ;;
esac
exec cryptsetup "$@""#;

#[tokio::test]
async fn a_killed_luks_format_is_made_good() {
    let scene = Scene::new();
    let folder = scene.path("cryptsetup");
    let wrapper = Wrapper::new(folder.clone(), &["cryptsetup"], KILLED);
    let driver = scene.driver().wrapped(&wrapper).start().await;
    let life = encrypted_life(&scene, &driver, "", mount("ext4")).await;
    let mut at = 1;
    loop {
        std::fs::write(folder.join("calls.at"), at.to_string()).expect("the number of a write");
        let status = life.stage(&driver).await.expect_err("a stage without a mapper");
        life.assert_gone_from(&driver);
        let meta = scene.corner.meta(&life.image);
        assert_eq!(meta[ENCRYPTED], "encryptionPrepared", "killed at write {at}");
        assert_eq!(meta[".rbd.csi.ceph.com/format"], format!("begun ext4 {}", life.uuid()));
        if !wrapper.calls().is_empty() {
            check(Err::<(), _>(status), Code::FailedPrecondition, "opening the LUKS header");
            break;
        }
        check(Err::<(), _>(status), Code::Internal, "was killed by signal 9");
        at += 1;
    }
    assert!(at > 16, "only {at} writes: this proves little");
    assert_eq!(wrapper.calls(), ["opens"]);
}
