//! `image-meta.json`: what NodeUnstageVolume needs and is not told. ceph-csi's schema, whichever backend runs: version 3
//! is written, 1 to 3 are read. Written atomically, read defensively.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backend::{Image, Mapping, Staging, Stashed};
use crate::error::{Error, Result, chain};
use crate::host::{Mount, files};

const FILE: &str = "image-meta.json";
/// More than any stash of ours or of ceph-csi has.
const MOST: u64 = 64 << 10;

/// Whether a volume of this name would be shown where the stash is.
pub(crate) fn is_stash(name: &str) -> bool {
    [Some(FILE), files::temporary(Path::new(""), FILE).to_str()].contains(&Some(name))
}

/// What a staging folder says about its image.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// There is a file, and it cannot be used; the text says why.
    Torn(String),
    Stashed(Stashed),
}

#[derive(Debug, Serialize, Deserialize)]
struct Stash {
    #[serde(rename = "Version")]
    version: u32,
    pool: String,
    #[serde(rename = "radosNamespace", default)]
    namespace: String,
    image: String,
    #[serde(rename = "unmapOptions", default)]
    unmap_options: String,
    /// True for rbd-nbd.
    #[serde(rename = "accessType", default)]
    nbd: bool,
    /// For ceph-csi: this driver asks the kernel what is open.
    #[serde(default)]
    encrypted: bool,
    #[serde(default)]
    device: String,
    #[serde(rename = "logDir", default)]
    log_dir: String,
    #[serde(rename = "logFileStrategy", default)]
    log_strategy: String,
    /// Ours, not ceph-csi's, which does not mind it.
    #[serde(rename = "mapOptions", default, skip_serializing_if = "String::is_empty")]
    map_options: String,
}

pub(super) fn write(staging: &Path, image: &Image, mapping: &Mapping, encrypted: bool) -> Result<()> {
    let (image, mapping) = (image.clone(), mapping.clone());
    let stash = Stash {
        version: 3,
        pool: image.pool,
        namespace: image.namespace,
        image: image.name,
        unmap_options: mapping.unmap_options,
        nbd: mapping.nbd,
        encrypted,
        device: mapping.device,
        log_dir: mapping.log_dir,
        log_strategy: mapping.log_strategy,
        map_options: mapping.map_options,
    };
    let failed = |error| Error::internal(format!("writing {}", staging.join(FILE).display()), error);
    let text = serde_json::to_vec(&stash).map_err(|error| failed(io::Error::other(error)))?;
    files::replace(staging, FILE, 0o600, &text).map_err(failed)
}

pub(super) fn read(staging: &Path) -> Result<Found> {
    let path = staging.join(FILE);
    let text = match files::read(&path, MOST) {
        Ok(text) => text,
        Err(error) if files::is_absence(&error) => return Ok(Found::Nothing),
        // Not the disk's fault: something else stands there.
        Err(error) if error.kind() == io::ErrorKind::Other => return Ok(Found::Torn(error.to_string())),
        Err(error) => return Err(Error::internal(format!("reading {}", path.display()), error)),
    };
    Ok(match serde_json::from_slice::<Stash>(&text) {
        Ok(stash) if stash.pool.is_empty() || stash.image.is_empty() => {
            Found::Torn("it names no image".to_owned())
        }
        Ok(stash) => Found::Stashed(stash.into_stashed()),
        Err(error) => Found::Torn(error.to_string()),
    })
}

/// Those of all volumes of a driver, in kubelet's own folder. None of these folders is a mount: what is mounted lies below.
pub(crate) fn all(kubelet: &Path, driver: &str) -> Vec<Staging> {
    let csi = kubelet.join("plugins/kubernetes.io/csi");
    let mounted = folders(csi.join(driver)).map(|folder| folder.join("globalmount"));
    mounted.chain(folders(csi.join("volumeDevices/staging"))).filter_map(|folder| staging(&folder)).collect()
}

fn folders(parent: PathBuf) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// None where there is no stash.
fn staging(folder: &Path) -> Option<Staging> {
    let image = match read(folder) {
        Ok(Found::Nothing) => return None,
        Ok(Found::Stashed(stashed)) => Ok(stashed.image),
        Ok(Found::Torn(why)) => Err(why),
        Err(error) => Err(chain(&error)),
    };
    let file = folder.join(FILE);
    let since = fs::metadata(&file).and_then(|about| about.modified()).ok();
    Some(Staging { file, since, image })
}

/// Of a staged mount. Whatever else a stash may be is for unstage to deal with.
pub(super) fn beside(staged: &Mount) -> Option<Stashed> {
    match read(staged.target.parent()?) {
        Ok(Found::Stashed(stashed)) => Some(stashed),
        _ => None,
    }
}

impl Stash {
    fn into_stashed(self) -> Stashed {
        let image = Image { pool: self.pool, namespace: self.namespace, name: self.image };
        let mapping = Mapping {
            nbd: self.nbd,
            device: self.device,
            unmap_options: self.unmap_options,
            log_dir: self.log_dir,
            log_strategy: self.log_strategy,
            map_options: self.map_options,
        };
        Stashed { image, mapping }
    }
}

/// The staging folder has to be empty when NodeUnstageVolume answers.
pub(super) fn remove(staging: &Path) -> Result<()> {
    for path in [staging.join(FILE), files::temporary(staging, FILE)] {
        match fs::remove_file(&path) {
            Err(error) if !files::is_absence(&error) => {
                return Err(Error::internal(format!("removing {}", path.display()), error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str) -> Result<Found> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(FILE), text).expect("written");
        read(folder.path())
    }

    fn image(namespace: &str) -> Image {
        Image { pool: "p".to_owned(), namespace: namespace.to_owned(), name: "i".to_owned() }
    }

    fn found(namespace: &str, nbd: bool) -> Found {
        Found::Stashed(Stashed { image: image(namespace), mapping: Mapping { nbd, ..Mapping::default() } })
    }

    fn by_nbd() -> Mapping {
        Mapping {
            nbd: true,
            device: "/dev/nbd0".to_owned(),
            unmap_options: "u".to_owned(),
            log_dir: "/l".to_owned(),
            log_strategy: "compress".to_owned(),
            map_options: String::new(),
        }
    }

    #[test]
    fn what_is_written_is_read_back_in_ceph_csi_s_schema() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), &image("n"), &by_nbd(), true).expect("written");
        let stashed = Stashed { image: image("n"), mapping: by_nbd() };
        assert_eq!(read(folder.path()).expect("read"), Found::Stashed(stashed));
        let text = fs::read_to_string(folder.path().join(FILE)).expect("text");
        let expected = r#"{"Version":3,"pool":"p","radosNamespace":"n","image":"i","unmapOptions":"u","accessType":true,"encrypted":true,"device":"/dev/nbd0","logDir":"/l","logFileStrategy":"compress"}"#;
        assert_eq!(text, expected);
        let mapping = Mapping { map_options: "nbd:notrim".to_owned(), ..by_nbd() };
        write(folder.path(), &image("n"), &mapping, false).expect("written");
        assert_eq!(
            read(folder.path()).expect("read"),
            Found::Stashed(Stashed { image: image("n"), mapping })
        );
        remove(folder.path()).expect("removed");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    }

    #[test]
    fn older_versions_are_read() {
        assert_eq!(
            check(r#"{"Version":1,"pool":"p","image":"i","accessType":true}"#).expect("v1"),
            found("", true)
        );
        assert_eq!(
            check(r#"{"Version":2,"pool":"p","image":"i","accessType":false,"encrypted":false}"#)
                .expect("v2"),
            found("", false)
        );
    }

    fn words() -> impl Strategy<Value = String> {
        any::<String>().prop_filter("a name", |name| !name.is_empty())
    }

    proptest! {
        #[test]
        fn any_stash_is_read_back(pool in words(), namespace in any::<String>(), name in words(), nbd in any::<bool>(), options in any::<[String; 3]>()) {
            let folder = tempfile::tempdir().expect("a folder");
            let [map_options, unmap_options, device] = options;
            let image = Image { pool, namespace, name };
            let mapping = Mapping { nbd, device, unmap_options, map_options, ..Mapping::default() };
            write(folder.path(), &image, &mapping, nbd).expect("written");
            prop_assert_eq!(read(folder.path()).expect("read"), Found::Stashed(Stashed { image, mapping }));
        }

        #[test]
        fn a_stash_that_is_cut_off_anywhere_is_torn(at in any::<proptest::sample::Index>(), version in 1..4_u32) {
            let whole = format!(r#"{{"Version":{version},"pool":"p","image":"i","accessType":true}}"#);
            prop_assert_eq!(check(&whole).expect("whole"), found("", true));
            let cut = &whole[..at.index(whole.len())];
            prop_assert!(matches!(check(cut), Ok(Found::Torn(_))), "{}", cut);
        }

        #[test]
        fn any_bytes_are_a_stash_or_a_torn_one(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let folder = tempfile::tempdir().expect("a folder");
            fs::write(folder.path().join(FILE), bytes).expect("written");
            prop_assert!(matches!(read(folder.path()), Ok(Found::Torn(_) | Found::Stashed(_))));
        }
    }

    #[test]
    fn what_is_planted_in_the_place_of_a_stash_is_torn_and_neither_followed_nor_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let (stash, other) = (folder.path().join(FILE), folder.path().join("other"));
        fs::write(&other, r#"{"Version":3,"pool":"p","image":"i"}"#).expect("another's stash");
        let plants: [&dyn Fn(); 4] = [
            &|| std::os::unix::fs::symlink(&other, &stash).expect("a link"),
            &|| nix::unistd::mkfifo(&stash, nix::sys::stat::Mode::S_IRWXU).expect("a fifo"),
            &|| fs::write(&stash, format!("{}1", " ".repeat(64 << 10))).expect("a huge file"),
            &|| fs::write(&stash, "[".repeat(60 << 10)).expect("a deep file"),
        ];
        for plant in plants {
            plant();
            assert!(matches!(read(folder.path()), Ok(Found::Torn(_))), "{:?}", read(folder.path()));
            write(folder.path(), &image(""), &Mapping::default(), false).expect("a stash in its place");
            assert!(matches!(read(folder.path()), Ok(Found::Stashed(_))));
            remove(folder.path()).expect("removed");
        }
        assert!(other.exists());
    }

    #[test]
    fn a_torn_stash_is_told_from_none() {
        for text in ["", "{", "null", r#"{"Version":3,"pool":"","image":""}"#, "\0\0\0"] {
            assert!(matches!(check(text), Ok(Found::Torn(_))), "{text:?}");
        }
        assert_eq!(read(Path::new("/does/not/exist")).expect("nothing"), Found::Nothing);
    }
}
