//! Compares proto/csi.proto with the published files of CSI 1.12 and 1.13, as
//! compiled descriptors: names, numbers, types, options, everything but
//! comments and order. Needs `go`, to fetch (and verify) the published files.
#![expect(clippy::disallowed_methods, reason = "a test has no event loop to block: it runs go and waits")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use protox::Compiler;
use protox::prost_reflect::{DescriptorPool, DynamicMessage, Value};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A flat descriptor: the path of each property (by names, so that order does
/// not count) and its value.
type Facts = BTreeMap<String, String>;

/// One csi.proto, compiled.
struct Contract {
    pool: DescriptorPool,
    file: DynamicMessage,
}

#[test]
fn every_number_of_csi_1_12_is_here() -> Outcome<()> {
    let lacking = differences(&published("v1.12.0")?.facts(), &[&ours()?.facts()]);
    assert!(lacking.is_empty(), "1.12 has, ours has not: {lacking:#?}");
    Ok(())
}

#[test]
fn every_number_of_csi_1_13_is_here() -> Outcome<()> {
    let lacking = differences(&published("v1.13.0")?.facts(), &[&ours()?.facts()]);
    assert!(lacking.is_empty(), "1.13 has, ours has not: {lacking:#?}");
    Ok(())
}

#[test]
fn nothing_is_here_that_no_release_has() -> Outcome<()> {
    let old = published("v1.12.0")?.facts();
    let new = published("v1.13.0")?.facts();
    let invented = differences(&ours()?.facts(), &[&new, &old]);
    assert!(invented.is_empty(), "in no release: {invented:#?}");
    Ok(())
}

#[test]
fn what_csi_1_13_reserves_has_its_1_12_name_here() -> Outcome<()> {
    let reserved = published("v1.13.0")?.reserved();
    let expected = [
        "csi.v1.ControllerGetVolumeResponse.VolumeStatus.volume_condition",
        "csi.v1.ControllerServiceCapability.RPC.Type.VOLUME_CONDITION",
        "csi.v1.ListVolumesResponse.VolumeStatus.volume_condition",
        "csi.v1.NodeGetVolumeStatsResponse.volume_condition",
        "csi.v1.NodeServiceCapability.RPC.Type.VOLUME_CONDITION",
    ];
    assert_eq!(published("v1.12.0")?.names_of(&reserved), expected);
    assert_eq!(ours()?.names_of(&reserved), expected);
    assert_eq!(ours()?.reserved(), [], "ours keeps them, so reserves none");
    Ok(())
}

#[test]
fn facts_cover_fields_options_and_calls() -> Outcome<()> {
    let facts = ours()?.facts();
    for (path, value) in [
        ("/message_type:Volume/field:volume_id/number", "I32(2)"),
        ("/message_type:DeleteVolumeRequest/field:secrets/options/[csi.v1.csi_secret]", "Bool(true)"),
        ("/service:SnapshotMetadata/method:GetMetadataDelta/server_streaming", "Bool(true)"),
        ("/message_type:VolumeUsage/enum_type:Unit/value:INODES/number", "I32(2)"),
    ] {
        assert_eq!(facts.get(path).map(String::as_str), Some(value), "{path}");
    }
    Ok(())
}

#[test]
fn one_changed_number_is_found() -> Outcome<()> {
    let mut contract = ours()?;
    let before = contract.facts();
    let message = member(&mut contract.file, "message_type", "VolumeCondition")?;
    let field = member(message, "field", "abnormal")?;
    field.set_field_by_name("number", Value::I32(3));
    let after = contract.facts();

    let path = "/message_type:VolumeCondition/field:abnormal/number";
    assert_eq!(differences(&before, &[&after]), [format!("{path} = I32(1)")]);
    assert_eq!(differences(&after, &[&before]), [format!("{path} = I32(3)")]);
    Ok(())
}

#[test]
fn one_dropped_message_is_found() -> Outcome<()> {
    let mut contract = ours()?;
    let before = contract.facts();
    list(&mut contract.file, "message_type")?.retain(|item| name_of(item) != Some("Topology"));
    let lacking = differences(&before, &[&contract.facts()]);
    assert!(!lacking.is_empty());
    assert!(lacking.iter().all(|fact| fact.starts_with("/message_type:Topology/")));
    Ok(())
}

impl Contract {
    /// Compiles the csi.proto of a directory.
    fn read(directory: &Path) -> Outcome<Self> {
        let mut compiler = Compiler::new([directory])?;
        compiler.include_imports(true).open_file("csi.proto")?;
        let bytes = compiler.encode_file_descriptor_set();
        let pool = DescriptorPool::decode(bytes.as_slice())?;
        // Read the set by its own pool: the csi.v1 options are known there, so
        // that no option is lost as an unknown field.
        let kind = pool
            .get_message_by_name("google.protobuf.FileDescriptorSet")
            .ok_or("descriptor.proto is not in the set")?;
        let mut set = DynamicMessage::decode(kind, bytes.as_slice())?;
        let file = member(&mut set, "file", "csi.proto")?.clone();
        Ok(Self { pool, file })
    }

    fn facts(&self) -> Facts {
        let mut facts = Facts::new();
        collect(&self.file, "", &mut facts);
        facts
    }

    /// Each reserved number with the full name of its message or enum.
    fn reserved(&self) -> Vec<(String, i32)> {
        let mut found = Vec::new();
        for message in self.pool.all_messages().filter(|m| is_csi(m.full_name())) {
            for number in message.reserved_ranges().flatten() {
                found.push((message.full_name().to_owned(), number.cast_signed()));
            }
        }
        for kind in self.pool.all_enums().filter(|e| is_csi(e.full_name())) {
            for number in kind.reserved_ranges().flatten() {
                found.push((kind.full_name().to_owned(), number));
            }
        }
        found.sort();
        found
    }

    /// The full names that these numbers have here; a number without one is
    /// left out.
    fn names_of(&self, numbers: &[(String, i32)]) -> Vec<String> {
        numbers
            .iter()
            .filter_map(|(owner, number)| {
                let field = self.pool.get_message_by_name(owner).and_then(|message| {
                    let field = message.get_field(number.cast_unsigned())?;
                    Some(field.name().to_owned())
                });
                let value = self.pool.get_enum_by_name(owner).and_then(|kind| {
                    let value = kind.get_value(*number)?;
                    Some(value.name().to_owned())
                });
                Some(format!("{owner}.{}", field.or(value)?))
            })
            .collect()
    }
}

fn is_csi(full_name: &str) -> bool {
    full_name.starts_with("csi.v1.")
}

fn ours() -> Outcome<Contract> {
    Contract::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("proto"))
}

fn published(version: &str) -> Outcome<Contract> {
    Contract::read(&fetched(version)?)
}

/// The directory of a published release, fetched by go unless it is there.
fn fetched(version: &str) -> Outcome<PathBuf> {
    let module = format!("github.com/container-storage-interface/spec@{version}");
    let output = go(&["mod", "download", "-json", &module])?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_default();
    match answer.get("Dir").and_then(serde_json::Value::as_str) {
        Some(directory) if output.status.success() => Ok(PathBuf::from(directory)),
        _ => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(format!("go cannot fetch {module}: {stdout}{stderr}").into())
        }
    }
}

/// Runs the go of PATH, or else the one in its usual place, outside any module.
fn go(arguments: &[&str]) -> Outcome<Output> {
    let outside = tempfile::tempdir()?;
    for program in ["go", "/usr/local/go/bin/go"] {
        let result = Command::new(program)
            .args(arguments)
            .current_dir(outside.path())
            .env("GOFLAGS", "-mod=mod")
            .env_remove("GONOSUMDB")
            .output();
        match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other.map_err(|error| format!("{program}: {error}").into()),
        }
    }
    Err("this test needs go, which is neither in PATH nor in /usr/local/go/bin".into())
}

/// What `left` says and none of `right` says just so.
fn differences(left: &Facts, right: &[&Facts]) -> Vec<String> {
    left.iter()
        .filter(|(path, value)| !right.iter().any(|facts| facts.get(*path) == Some(value)))
        .map(|(path, value)| format!("{path} = {value}"))
        .collect()
}

/// Notes all that a descriptor says, but for positions in the text and the
/// reserved numbers, which have a test of their own.
fn collect(message: &DynamicMessage, path: &str, facts: &mut Facts) {
    // The bare existence counts too: an empty message has only its name.
    facts.insert(format!("{path}/"), String::new());
    for (field, value) in message.fields() {
        match field.name() {
            "source_code_info" | "reserved_range" | "reserved_name" => {}
            name => note(value, &format!("{path}/{name}"), facts),
        }
    }
    for (extension, value) in message.extensions() {
        note(value, &format!("{path}/[{}]", extension.full_name()), facts);
    }
}

fn note(value: &Value, path: &str, facts: &mut Facts) {
    match value {
        Value::Message(message) => collect(message, path, facts),
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                // Fields point to their oneof by its index, so there order counts.
                let label = match name_of(item) {
                    Some(name) if !path.ends_with("/oneof_decl") => name.to_owned(),
                    _ => index.to_string(),
                };
                note(item, &format!("{path}:{label}"), facts);
            }
        }
        scalar => {
            facts.insert(path.to_owned(), format!("{scalar:?}"));
        }
    }
}

/// The name of a named descriptor.
fn name_of(item: &Value) -> Option<&str> {
    let message = item.as_message()?;
    message.fields().find_map(|(field, value)| {
        let named = field.name() == "name";
        named.then(|| value.as_str()).flatten()
    })
}

fn list<'a>(message: &'a mut DynamicMessage, field: &str) -> Outcome<&'a mut Vec<Value>> {
    message
        .get_field_by_name_mut(field)
        .and_then(Value::as_list_mut)
        .ok_or_else(|| format!("no list {field}").into())
}

/// The descriptor of this name in a list of descriptors.
fn member<'a>(message: &'a mut DynamicMessage, field: &str, name: &str) -> Outcome<&'a mut DynamicMessage> {
    list(message, field)?
        .iter_mut()
        .find(|item| name_of(item) == Some(name))
        .and_then(Value::as_message_mut)
        .ok_or_else(|| format!("no {name} in {field}").into())
}
