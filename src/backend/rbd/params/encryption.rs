//! The parameters of encryption, by ceph-csi's names: which key store a volume is of, and how its LUKS header is made,
//! which the node reads in the volume context. Pure.

use crate::backend::Parameters;
use crate::error::{Error, Result};
use crate::keys;

const STORE: &str = "encryptionKMSID";
const KIND: &str = "encryptionType";
/// Parameters of the LUKS header, and the values that it takes.
const CHOICES: &[(&str, &[&str])] = &[
    ("encryptionCipher", &["aes-xts-plain64", "serpent-xts-plain64"]),
    ("encryptionKeySize", &["256", "512"]),
    ("encryptionSectorSize", &["512", "1024", "2048", "4096"]),
];

/// The key store of a volume that is to be encrypted; None: it is plain.
pub(crate) fn key_store(parameters: &Parameters) -> Result<Option<String>> {
    let given = parameters.get("encrypted");
    let encrypted = is_encrypted(parameters)?;
    let mut names = [STORE, KIND].into_iter().chain(CHOICES.iter().map(|(name, _)| *name));
    if given.is_none()
        && let Some((name, value)) = names.find_map(|name| parameters.get_key_value(name))
    {
        return refuse(name, value, "it goes with encrypted: \"true\": add that, or leave it out");
    }
    check_kind(parameters)?;
    for (name, choices) in CHOICES {
        match parameters.get(*name) {
            Some(value) if value.ends_with("-random") => {
                return refuse(
                    name,
                    value,
                    "such a cipher needs integrityMode, which is not built in this version of the driver",
                );
            }
            Some(value) if !choices.contains(&value.as_str()) => {
                return refuse(name, value, &format!("it is one of {choices:?}"));
            }
            _ => {}
        }
    }
    Ok(if encrypted { Some(store(parameters)?) } else { None })
}

/// Of parameters, or of a volume context.
pub(crate) fn is_encrypted(parameters: &Parameters) -> Result<bool> {
    match parameters.get("encrypted").map(String::as_str) {
        // What Go reads as a truth.
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        None | Some("" | "0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(value) => refuse("encrypted", value, "it is \"true\" or \"false\""),
    }
}

/// Refuses encryption of another kind than that of the whole image.
pub(crate) fn check_kind(parameters: &Parameters) -> Result<()> {
    match parameters.get(KIND).map(String::as_str) {
        None | Some("" | "block") => Ok(()),
        Some("file") => refuse(KIND, "file", "not built in this version of the driver: there is \"block\""),
        Some(value) => refuse(KIND, value, "it is \"block\""),
    }
}

/// The key store that is named; the default one where none is.
pub(crate) fn store(parameters: &Parameters) -> Result<String> {
    match parameters.get(STORE).map(String::as_str) {
        None | Some("") => Ok(keys::DEFAULT.to_owned()),
        Some(name) if name.chars().any(char::is_control) => {
            refuse(STORE, name, "it is an id of config.json of the key stores")
        }
        Some(name) => Ok(name.to_owned()),
    }
}

fn refuse<T>(name: &str, value: &str, what: &str) -> Result<T> {
    Err(Error::Invalid(format!("StorageClass parameter {name}={value:?}: {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pairs: &[(&str, &str)]) -> Result<Option<String>, String> {
        let parameters =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        key_store(&parameters).map_err(|error| error.to_string())
    }

    #[test]
    fn a_volume_is_plain_unless_it_is_to_be_encrypted() {
        let own = ("encryptionKMSID", "mine");
        assert_eq!(check(&[]), Ok(None));
        assert_eq!(check(&[("encrypted", "false"), own]), Ok(None));
        assert_eq!(check(&[("encrypted", "true")]), Ok(Some("default".to_owned())));
        assert_eq!(check(&[("encrypted", "True"), ("encryptionKMSID", "")]), Ok(Some("default".to_owned())));
        let all = [("encrypted", "1"), own, ("encryptionType", "block"), ("encryptionKeySize", "512")];
        assert_eq!(check(&all), Ok(Some("mine".to_owned())));
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let on = ("encrypted", "true");
        let wrong: [&[(&str, &str)]; 8] = [
            &[("encrypted", "yes")],
            &[("encryptionKMSID", "mine")],
            &[("encryptionType", "file"), on],
            &[("encryptionType", "disk"), on],
            &[("encryptionCipher", "aes-cbc"), on],
            &[("encryptionCipher", "aes-xts-random"), on],
            &[("encryptionKeySize", "128"), on],
            &[("encryptionSectorSize", "0"), on],
        ];
        for pairs in wrong {
            let (name, value) = pairs[0];
            assert!(
                check(pairs).is_err_and(|error| error.contains(&format!("{name}={value:?}"))),
                "{pairs:?}"
            );
        }
    }
}
